//! Each of the engine's threads stays on a core of its own, so that what its caches hold stays near.

/// Binds the calling thread, one of `threads`, to the `index`th core that the process may use.
///
/// Only where there are as many such cores as threads: with fewer threads the system chooses better, as others may be
/// busy on some cores. Where the system refuses, all works the same.
#[cfg(target_os = "linux")]
pub(super) fn stay_on_core(index: usize, threads: usize) {
    let cores = linux::cores();
    if cores.len() == threads {
        linux::stay_on(cores[index]);
    }
}

/// Other systems place threads themselves.
#[cfg(not(target_os = "linux"))]
pub(super) fn stay_on_core(_: usize, _: usize) {}

#[cfg(target_os = "linux")]
mod linux {
    use std::mem::{size_of, zeroed};

    use libc::{CPU_ISSET, CPU_SET, CPU_SETSIZE, cpu_set_t, sched_getaffinity, sched_setaffinity};

    /// One processor of each core that the calling thread may run on.
    pub(super) fn cores() -> Vec<usize> {
        let mut cores: Vec<(String, usize)> = Vec::new();
        for processor in processors() {
            let core = core_of(processor);
            if !cores.iter().any(|(other, _)| *other == core) {
                cores.push((core, processor));
            }
        }
        cores.into_iter().map(|(_, processor)| processor).collect()
    }

    /// Processors that the calling thread may run on.
    pub(super) fn processors() -> Vec<usize> {
        // SAFETY: a set of processors is plain bits, and the call gets its right size.
        let set = unsafe {
            let mut set: cpu_set_t = zeroed();
            sched_getaffinity(0, size_of::<cpu_set_t>(), &mut set);
            set
        };
        // SAFETY: only below the size of the set.
        let has = |processor: &usize| unsafe { CPU_ISSET(*processor, &set) };
        (0..CPU_SETSIZE as usize).filter(has).collect()
    }

    /// What the system calls the core of a processor; the processor's own number where it does not tell.
    fn core_of(processor: usize) -> String {
        let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
        std::fs::read_to_string(path).unwrap_or_else(|_| processor.to_string())
    }

    /// Binds the calling thread to one processor.
    pub(super) fn stay_on(processor: usize) {
        // SAFETY: as above.
        unsafe {
            let mut set: cpu_set_t = zeroed();
            CPU_SET(processor, &mut set);
            sched_setaffinity(0, size_of::<cpu_set_t>(), &set);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::{super::stay_on_core, *};

        #[test]
        fn as_many_threads_as_cores_stay_on_one_each_and_fewer_stay_free() {
            let (cores, all) = (cores(), processors());
            let placed = |index: usize, threads: usize| {
                let thread = std::thread::spawn(move || {
                    stay_on_core(index, threads);
                    processors()
                });
                thread.join().unwrap()
            };
            for (index, core) in cores.iter().enumerate() {
                assert_eq!(placed(index, cores.len()), [*core]);
            }
            assert_eq!(placed(0, cores.len() + 1), all);
        }
    }
}
