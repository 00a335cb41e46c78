use std::env;

use super::*;

#[test]
fn a_program_that_is_missing_was_looked_for_somewhere() {
    let here = env::current_dir().unwrap();
    let at = |name: &str| format!("it was looked for at {}", here.join(name).display());
    for (command, parts) in [
        ("./mytun {tun}", [at("mytun"), "; install it, or give its path".to_owned()]),
        ("~/mytun {tun}", [at("~/mytun"), "there is no shell, so ~/mytun is passed as it is".to_owned()]),
        (
            "mytun {tun}",
            ["mytun: it is not installed; it was looked for in the folders of PATH", ""].map(str::to_owned),
        ),
    ] {
        let profile = Profile::named(command).unwrap();
        let error = cannot_start(&profile, &profile.command, io::ErrorKind::NotFound.into()).to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    let absolute = Profile::named("/no/such {tun}").unwrap();
    let error = cannot_start(&absolute, &absolute.command, io::ErrorKind::NotFound.into()).to_string();
    assert!(!error.contains("looked for"), "{error}");
}
