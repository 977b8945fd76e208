//! The one place that decides which way a region is registered with a card.
