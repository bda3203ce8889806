//! Folders appear whole or not at all, and the newest whole one is found.

use super::*;

/// A complete checkpoint with one file.
fn save(parent: &Path, step: u64) -> PathBuf {
    write_folder(parent, &folder_name(step), |folder| {
        fs::write(folder.join(TRAINER_STATE), format!("{{\"step\":{step}}}"))
            .map_err(|error| EngineError::io("write", folder, error))
    })
    .unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn g076_the_newest_complete_checkpoint_is_taken_by_number_and_the_others_are_named() {
    let parent = tempfile::tempdir().unwrap();
    save(parent.path(), 9);
    save(parent.path(), 10);
    let without_state = save(parent.path(), 20);
    fs::remove_file(without_state.join(TRAINER_STATE)).unwrap();
    let emptied = save(parent.path(), 30);
    fs::write(emptied.join(TRAINER_STATE), b"").unwrap();
    let unfinished = save(parent.path(), 40);
    fs::remove_file(unfinished.join(MANIFEST)).unwrap();
    let newest = newest_complete(parent.path()).unwrap();
    assert_eq!(newest.folder.unwrap(), parent.path().join("step-10"));
    assert_eq!(newest.passed_over.len(), 3);
    for (warning, step) in newest
        .passed_over
        .iter()
        .zip(["step-40", "step-30", "step-20"])
    {
        assert!(warning.contains(step), "{warning}");
    }
}

#[test]
fn without_any_complete_checkpoint_there_is_none_to_go_on_from() {
    let parent = tempfile::tempdir().unwrap();
    assert!(newest_complete(parent.path()).unwrap().folder.is_none());
    assert!(
        newest_complete(&parent.path().join("not there"))
            .unwrap()
            .folder
            .is_none()
    );
}

#[test]
fn a_bit_that_flipped_makes_a_checkpoint_incomplete() {
    let parent = tempfile::tempdir().unwrap();
    let folder = save(parent.path(), 1);
    assert!(Manifest::check(&folder).is_ok());
    fs::write(folder.join(TRAINER_STATE), b"{\"step\":2}").unwrap();
    let error = Manifest::check(&folder).unwrap_err().to_string();
    assert!(
        error.contains(TRAINER_STATE) && error.contains("cut off or changed"),
        "{error}"
    );
}

#[test]
fn a_manifest_that_names_files_elsewhere_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let folder = save(parent.path(), 1);
    let text = fs::read_to_string(folder.join(MANIFEST))
        .unwrap()
        .replace(TRAINER_STATE, "../step-1/trainer_state.json");
    fs::write(folder.join(MANIFEST), text).unwrap();
    assert!(
        Manifest::check(&folder)
            .unwrap_err()
            .to_string()
            .contains("no plain file name")
    );
}

#[test]
fn a_save_that_fails_leaves_the_folder_before_it_whole_and_nothing_aside() {
    let parent = tempfile::tempdir().unwrap();
    let folder = save(parent.path(), 5);
    let failed = write_folder(parent.path(), "step-5", |aside| {
        fs::write(aside.join("half"), b"written").unwrap();
        Err(EngineError::io(
            "write",
            aside,
            io::Error::other("no space left"),
        ))
    });
    assert!(failed.is_err());
    assert_eq!(names(parent.path()), ["step-5"]);
    assert!(Manifest::check(&folder).is_ok());
}

#[test]
fn what_a_crash_left_aside_is_removed_by_the_next_save() {
    let parent = tempfile::tempdir().unwrap();
    fs::create_dir(parent.path().join(".saving-step-7")).unwrap();
    assert!(newest_complete(parent.path()).unwrap().folder.is_none());
    save(parent.path(), 8);
    assert_eq!(names(parent.path()), ["step-8"]);
}

#[test]
fn g075_a_checkpoint_that_a_crash_caught_while_it_was_replaced_is_put_back() {
    let parent = tempfile::tempdir().unwrap();
    let folder = save(parent.path(), 7);
    let aside = parent.path().join(".replaced-step-7");
    fs::rename(&folder, &aside).unwrap();
    let newest = newest_complete(parent.path()).unwrap();
    assert_eq!(newest.folder.as_deref(), Some(folder.as_path()));
    fs::rename(&folder, &aside).unwrap();
    save(parent.path(), 8);
    assert_eq!(names(parent.path()), ["step-7", "step-8"]);
    fs::create_dir(&aside).unwrap();
    save(parent.path(), 7);
    assert_eq!(names(parent.path()), ["step-7", "step-8"]);
}

#[test]
fn only_the_newest_checkpoints_are_kept_by_number() {
    let parent = tempfile::tempdir().unwrap();
    for step in [2, 10, 9, 100] {
        save(parent.path(), step);
    }
    prune(parent.path(), 2, None).unwrap();
    assert_eq!(names(parent.path()), ["step-10", "step-100"]);
}
