//! The quotas of the processor of this process's cgroups: `docker run --cpus`, limits in Kubernetes, `CPUQuota=`.

use std::fs;
use std::path::Path;

use crate::Throttled;

/// How much quotas of the processor have held back the cgroup of this process, and those around it, so far. `None` without
/// a quota; only Linux has them.
pub fn throttled() -> Option<Throttled> {
    throttled_in(Path::new("/sys/fs/cgroup"), &fs::read_to_string("/proc/self/cgroup").ok()?)
}

/// The sum of all `cpu.stat` from each group (`cgroups(7)`, `/proc/PID/cgroup`) up to the mount. A container may see its own
/// group as the mount, and have a path of the host, of which it sees nothing.
fn throttled_in(mounts: &Path, groups: &str) -> Option<Throttled> {
    let groups = groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let of_cpu = groups.flat_map(|(controllers, group)| {
        let mounts: &[&str] = match controllers {
            "" => &["", "unified"],
            names if names.split(',').any(|name| name == "cpu") => &["cpu"],
            _ => &[],
        };
        mounts.iter().map(move |mount| (mount, Path::new(group)))
    });
    let folders = of_cpu.flat_map(|(mount, group)| {
        let inside = group.ancestors().filter_map(|group| group.strip_prefix("/").ok());
        inside.map(move |group| mounts.join(mount).join(group))
    });
    folders
        .filter_map(|folder| parse_throttled(&fs::read_to_string(folder.join("cpu.stat")).ok()?))
        .reduce(Throttled::and)
}

/// The lines of version 2, and those of version 1 (`Documentation/scheduler/sched-bwc.rst`). Without a quota no period ends.
pub(crate) fn parse_throttled(stat: &str) -> Option<Throttled> {
    let value = |name| -> Option<u64> { stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()) };
    let time_ns = value("throttled_usec ").map(|time| time.saturating_mul(1000)).or_else(|| value("throttled_time "));
    let throttled = Throttled { periods: value("nr_throttled ")?, time_ns: time_ns? };
    value("nr_periods ").filter(|periods| *periods > 0).map(|_| throttled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quotas_of_a_group_and_of_those_around_it_count_in_both_versions() {
        let mounts = tempfile::tempdir().unwrap();
        for (folder, stat) in [
            ("a/b", "usage_usec 9\nnr_periods 7\nnr_throttled 5\nthrottled_usec 300\nnr_bursts 1\n"),
            ("a", "usage_usec 9\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n"),
            ("", "usage_usec 9\nuser_usec 9\n"),
            ("cpu", "nr_periods 3\nnr_throttled 2\nthrottled_time 70\n"),
            ("cpu/x/y", "nr_periods 4\nnr_throttled 1\nthrottled_time 8\n"),
            ("cpu/none", "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n"),
        ] {
            fs::create_dir_all(mounts.path().join(folder)).unwrap();
            fs::write(mounts.path().join(folder).join("cpu.stat"), stat).unwrap();
        }
        for (groups, expected) in [
            ("0::/a/b/c\n", Some((5, 300_000))),
            ("0::/a\n", None),
            ("0::/../other\n", None),
            ("9:cpuset:/x/y\n4:cpuacct,cpu:/x/y\n0::/\n", Some((3, 78))),
            ("1:cpu:/docker/of-the-host\n", Some((2, 70))),
            ("9:memory:/x\nnonsense\n", None),
        ] {
            let found = throttled_in(mounts.path(), groups).map(|found| (found.periods, found.time_ns));
            assert_eq!(found, expected, "{groups}");
        }
    }
}
