//! What tells that rows of two runs measure the same. Also a module of `xtask`, which compares results files.

/// Returns what a row measures: its id, without the method where that was chosen automatically, `GROUP/PATH/METHOD/SIZE`. The other groups
/// name the method that was asked for. That of a row's reference, `ID: REFERENCE`, is without the words, which may change.
pub(crate) fn key(id: &str) -> String {
    let (id, reference) = id.split_once(": ").map_or((id, ""), |(id, _)| (id, ": reference"));
    let mut parts: Vec<&str> = id.split('/').collect();
    let path = parts.iter().position(|part| part.contains("-to-")).unwrap_or(parts.len());
    let is_chosen = match parts.get(..path) {
        Some([]) => true,
        Some([group]) => {
            ["device-clock", "submit", "wait", "await", "unbound", "allocations", "threads-8"].contains(group)
        }
        Some(groups) => groups == ["allocations", "await"],
        None => false,
    };
    if is_chosen && parts.len() == path + 3 {
        parts.remove(path + 1);
    }
    parts.join("/") + reference
}

/// Returns whether a row is there only if a choice turned out wrong, or matters: cells of single paths, and where methods change; or only if all
/// threads of the process sleep.
pub(crate) fn may_be_absent(id: &str) -> bool {
    let is_choice = |group: &str| group == "choice" || group.starts_with("choice-");
    id.split('/').next().is_some_and(is_choice) && id.contains("-to-")
        || id.split('/').any(|part| part == "processor-time")
}

#[cfg(test)]
mod tests {
    use super::may_be_absent;

    #[test]
    fn wrong_choices_may_be_absent_on_any_number_of_processors() {
        for id in [
            "choice/wrong/cpu.pinned-to-cuda:0.device/4096",
            "choice-2/wrong/cpu.pinned-to-cuda:0.device/4096",
        ] {
            assert!(may_be_absent(id), "{id}");
        }
        assert!(!may_be_absent("choices/cpu-to-cuda") && !may_be_absent("choice-2/lists/mean"));
    }
}
