//! Continuous numbers of blocks.
//!
//! The window needs numbers that increase by 1. 64-bit block ids do. 16-bit ids are 1 to 65535: id 0 is not used, so the id
//! after 65535 is 1. The number of a 16-bit id is the one nearest to the newest block.

/// Number of 16-bit block ids.
const IDS: u64 = 65_535;

/// Returns the number of the block with the id `id`. `newest` is the number of the newest block.
#[inline]
pub(super) fn number(id: u64, is_extended: bool, newest: Option<u64>) -> u64 {
    if is_extended {
        return id;
    }
    let Some(newest) = newest else {
        // Leaves room for numbers of earlier blocks.
        return IDS + id;
    };
    let ahead = (id + IDS - self::id(newest, false)) % IDS;
    if ahead <= IDS / 2 {
        newest.saturating_add(ahead)
    } else {
        newest.saturating_sub(IDS - ahead)
    }
}

/// Returns the id of the block with the number `number`.
#[inline]
pub(super) const fn id(number: u64, is_extended: bool) -> u64 {
    if is_extended {
        number
    } else {
        (number.saturating_sub(1)) % IDS + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_skip_zero() {
        let last = number(65_535, false, None);
        let next = number(1, false, Some(last));
        assert_eq!(next, last + 1);
        assert_eq!(number(65_535, false, Some(next)), last);
        assert_eq!((id(last, false), id(next, false)), (65_535, 1));
    }

    proptest! {
        #[test]
        fn numbers_follow_ids(start in 1_u64..=65_535, ahead in -32_767_i64..=32_767) {
            let newest = number(start, false, None);
            let other = newest.saturating_add_signed(ahead);
            prop_assert_eq!(number(id(other, false), false, Some(newest)), other);
            prop_assert_eq!(number(id(other, true), true, Some(newest)), other);
        }
    }
}
