//! Places labels beside the ends of lines, so that labels do not overlap.

/// Returns the top of each label, in the order of `wanted`: as near as possible to the wanted top, below the labels
/// whose wanted top is higher, and between `top` and `bottom` if the labels fit. Each entry of `wanted` is a top and a
/// height.
pub(super) fn place(wanted: &[(f64, f64)], top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].0.total_cmp(&wanted[*b].0));
    // Neighbours that would overlap form a cluster, whose labels touch each other.
    let mut clusters: Vec<Cluster> = Vec::new();
    for &i in &order {
        let (at, height) = wanted[i];
        let mut cluster = Cluster {
            members: vec![i],
            sum: at,
            height,
        };
        while let Some(last) =
            clusters.pop_if(|last| last.top(top, bottom) + last.height > cluster.top(top, bottom))
        {
            cluster = last.with(cluster);
        }
        clusters.push(cluster);
    }
    let mut tops = vec![0.0; wanted.len()];
    for cluster in clusters {
        let mut y = cluster.top(top, bottom);
        for i in cluster.members {
            tops[i] = y;
            y += wanted[i].1;
        }
    }
    tops
}

/// Labels that touch each other.
struct Cluster {
    members: Vec<usize>,
    /// Sum of the tops of the cluster that its members want.
    sum: f64,
    height: f64,
}

impl Cluster {
    /// Returns the top that is nearest to what the members want.
    fn top(&self, top: f64, bottom: f64) -> f64 {
        let wanted = self.sum / self.members.len() as f64;
        wanted.min(bottom - self.height).max(top)
    }

    /// Appends the lower cluster `other`.
    fn with(mut self, other: Self) -> Self {
        self.sum += other.sum - self.height * other.members.len() as f64;
        self.height += other.height;
        self.members.extend(other.members);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_without_conflict_keep_their_place() {
        assert_eq!(
            place(&[(50.0, 10.0), (20.0, 10.0)], 0.0, 100.0),
            [50.0, 20.0]
        );
    }

    #[test]
    fn labels_share_the_shift() {
        let tops = place(&[(50.0, 10.0), (50.0, 10.0), (52.0, 10.0)], 0.0, 100.0);
        assert_eq!(tops[1] - tops[0], 10.0);
        assert_eq!(tops[2] - tops[1], 10.0);
        assert!((tops[0] - 40.7).abs() < 0.1, "{tops:?}");
    }

    #[test]
    fn labels_stay_between_top_and_bottom() {
        let tops = place(&[(-5.0, 10.0), (-5.0, 10.0), (98.0, 10.0)], 0.0, 100.0);
        assert_eq!(tops, [0.0, 10.0, 90.0]);
        assert_eq!(place(&[], 0.0, 100.0), [0.0; 0]);
    }
}
