//! The memory of the machine, as far as this process may use it.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of memory: the machine's, or less where a control group (a container) has a limit. `None` where neither can
/// be told.
pub fn memory_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups).into_iter().filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    limits.chain(machine).min()
}

/// `MemTotal` of `/proc/meminfo`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Where the limits of this process's control groups are, of either version: a group's own, and those above it.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (root, name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|one| one == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let groups = Path::new(group.trim_start_matches('/')).ancestors();
        files.extend(groups.map(|group| Path::new(root).join(group).join(name)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_the_limits_is_found() {
        assert_eq!(total("MemTotal:       24570000 kB\nMemFree: 1 kB\n"), Some(24_570_000 << 10));
        assert_eq!(total("nothing"), None);
        let files = limit_files("0::/a/b\n4:cpu,memory:/c\n3:pids:/d\nbroken\n");
        let expected = [
            "/sys/fs/cgroup/a/b/memory.max",
            "/sys/fs/cgroup/a/memory.max",
            "/sys/fs/cgroup/memory.max",
            "/sys/fs/cgroup/memory/c/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        ];
        assert_eq!(files, expected.map(PathBuf::from));
        assert!(memory_bytes().is_none_or(|bytes| bytes > 64 << 20));
    }
}
