//! Where the selected bytes are in a frame.

/// Numbers in groups of the same form: number `i` is `bases[i / each] + i % each * step`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Places {
    bases: Vec<usize>,
    each: usize,
    step: usize,
}

impl Places {
    /// Creates `count` numbers from `first` on, at distances of `step`.
    pub(super) fn range(first: usize, count: usize, step: usize) -> Self {
        Self {
            bases: if count == 0 { Vec::new() } else { vec![first] },
            each: count.max(1),
            // The distance between neighbours is not used for one number, and may be too large to multiply.
            step: if count > 1 { step } else { 1 },
        }
    }

    /// Creates the places of a list. If the distances are equal, the result is a range.
    pub(super) fn list(list: Vec<usize>) -> Self {
        if let [first, second, ..] = list[..]
            && second > first
            && list
                .windows(2)
                .all(|pair| pair[1].checked_sub(pair[0]) == Some(second - first))
        {
            return Self::range(first, list.len(), second - first);
        }
        Self {
            bases: list,
            each: 1,
            step: 1,
        }
    }

    /// Returns the number of places.
    pub(super) fn count(&self) -> usize {
        self.bases.len().saturating_mul(self.each)
    }

    /// Returns place `i`.
    pub(super) fn at(&self, i: usize) -> usize {
        self.bases.get(i / self.each).copied().unwrap_or_default() + i % self.each * self.step
    }

    /// Returns the largest place; `None` if there are no places or the place is too large to count.
    pub(super) fn last(&self) -> Option<usize> {
        let within = (self.each - 1).checked_mul(self.step)?;
        self.bases.iter().max()?.checked_add(within)
    }

    /// Returns the distance between neighbours; `None` if it varies.
    pub(super) fn step(&self) -> Option<usize> {
        match self.bases.len() {
            1 => Some(self.step),
            _ => None,
        }
    }

    /// Returns these places in each of the parts `keep`, where a part has `size` numbers.
    pub(super) fn in_parts(&self, keep: &[usize], size: usize) -> Self {
        let bases: Vec<_> = keep
            .iter()
            .flat_map(|part| self.bases.iter().map(move |base| part * size + base))
            .collect();
        if self.each == 1 {
            return Self::list(bases);
        }
        let merged = Self {
            bases,
            ..self.clone()
        };
        // Places that cover neighbouring whole parts are one range.
        let is_whole = self.each * self.step == size && self.bases.len() == 1;
        if is_whole && keep.windows(2).all(|pair| pair[1] == pair[0] + 1) {
            return Self::range(merged.at(0), merged.count(), self.step);
        }
        merged
    }

    /// Returns these places multiplied by `unit`.
    pub(super) fn scaled(&self, unit: usize) -> Self {
        Self {
            bases: self.bases.iter().map(|base| base * unit).collect(),
            each: self.each,
            step: self.step * unit,
        }
    }

    /// Joins neighbours that are `unit` apart. Returns the places of the runs, and the length of a run.
    fn joined(self, unit: usize) -> (Self, usize) {
        if self.step != unit {
            return (self, unit);
        }
        let run = self.each * unit;
        let runs = Self { each: 1, ..self };
        (runs, run)
    }

    /// Returns all numbers that describe the places.
    fn numbers(&self) -> impl Iterator<Item = usize> {
        let step = if self.each > 1 { self.step } else { 0 };
        self.bases.iter().copied().chain([step])
    }

    fn divided(self, by: usize) -> Self {
        Self {
            bases: self.bases.iter().map(|base| base / by).collect(),
            each: self.each,
            step: self.step / by,
        }
    }

    /// Returns the bases, the number of places of each, and the distance between these.
    pub(super) fn groups(&self) -> (&[usize], usize, usize) {
        (&self.bases, self.each, self.step)
    }
}

/// The selected bytes of a frame: pieces of equal length. Piece `i` begins at byte `outer.at(i / inner.count()) +
/// inner.at(i % inner.count())`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    pub(super) outer: Places,
    pub(super) inner: Places,
    /// Number of bytes of a piece.
    pub(super) run: usize,
}

impl Pieces {
    /// Creates pieces from places in bits. `pitch` is the distance between neighbours along the outer axis, `unit` that
    /// along the inner axis. Joins pieces that follow each other. Returns `None` if a piece is not whole bytes.
    pub(super) fn new(mut outer: Places, inner: Places, [pitch, unit]: [usize; 2]) -> Option<Self> {
        let (inner, mut run) = inner.joined(unit);
        if inner.count() == 1 && run == pitch {
            (outer, run) = outer.joined(pitch);
        }
        let are_bytes = outer
            .numbers()
            .chain(inner.numbers())
            .chain([run])
            .all(|number| number.is_multiple_of(8));
        are_bytes.then(|| Self {
            outer: outer.divided(8),
            inner: inner.divided(8),
            run: run / 8,
        })
    }

    /// Returns the number of selected bytes.
    pub(super) fn bytes(&self) -> usize {
        self.outer.count() * self.inner.count() * self.run
    }

    /// Returns the largest power of two up to `max` that divides all places and the length of a piece.
    pub(super) fn word(&self, max: usize) -> usize {
        let numbers = self.outer.numbers().chain(self.inner.numbers());
        let bits = numbers.fold(self.run | max, |bits, number| bits | number);
        1 << bits.trailing_zeros()
    }

    /// Returns the number of bytes of the places in memory.
    pub(super) fn memory(&self) -> usize {
        (self.outer.bases.len() + self.inner.bases.len()) * size_of::<usize>()
    }

    /// Copies the pieces of `frame` to `target`.
    pub(super) fn copy(&self, frame: &[u8], target: &mut [u8]) {
        let mut targets = target.chunks_exact_mut(self.run);
        for row in 0..self.outer.count() {
            let row = self.outer.at(row);
            for piece in 0..self.inner.count() {
                let at = row + self.inner.at(piece);
                if let (Some(target), Some(piece)) = (targets.next(), frame.get(at..at + self.run))
                {
                    target.copy_from_slice(piece);
                }
            }
        }
    }
}
