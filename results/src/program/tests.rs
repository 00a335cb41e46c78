use super::*;

#[test]
fn every_profile_of_this_program_is_read_by_its_name() {
    for name in names() {
        let profile = Profile::named(name).unwrap();
        profile.check().unwrap();
        assert_eq!((profile.name.as_str(), profile.typed.as_str()), (name, name));
        let is_of_kernel = profile.role == Role::Route || name == "wireguard-kernel";
        assert_eq!(profile.command.is_empty(), is_of_kernel, "{name}");
        assert_eq!(has_no_program(profile.name), profile.role == Role::Route, "{name}");
        assert_eq!(is_baseline(profile.name), !profile.has_device(), "{name}");
    }
    let refused = Profile::named("no-such").unwrap_err();
    assert!(refused.contains("tun2proxy") && refused.contains("by their path"), "{refused}");
}

#[test]
fn an_error_in_a_profile_has_its_line_and_column() {
    let text = "name = \"x\"\nrole = \"proxy\"\n  comand = [\"x\"]\n";
    let refused = Profile::parse(text).unwrap_err();
    assert!(refused.starts_with("line 3, column 3: unknown field `comand`"), "{refused}");
    assert!(refused.contains("`environment`") && !refused.contains("typed"), "{refused}");
    let refused = Profile::parse("name = \"a b\"\nrole = \"proxy\"\n").unwrap_err();
    assert!(refused.starts_with("line 1, column 8: a name has"), "{refused}");
    let refused = Profile::parse("name = \"x\"\nrole = \"cook\"\n").unwrap_err();
    assert!(refused.starts_with("line 2, column 8: unknown variant `cook`"), "{refused}");
    assert!(refused.ends_with("`proxy`, `tunnel`, `attach`"), "{refused}");
    let refused = Profile::parse("name = \"x\"\nrole = \"proxy\"\ncommand = \"./x {tun}\"\n").unwrap_err();
    let advice = r#"a list of words, such as ["./mytun", "#;
    assert!(refused.starts_with("line 3, ") && refused.contains(advice), "{refused}");
    let refused = Profile::parse("name = \"x\"\n").unwrap_err();
    assert!(refused.ends_with(r#"missing field `role`, which is "proxy", "tunnel" or "attach""#), "{refused}");
    // Nothing in a file reaches the terminal as a control character.
    let of_role = "name = \"x\"\nrole = \"\\u001b[2J\"";
    for text in ["\"\\u001b[2J\" = 1", "name = \"\\u001b[2J\"", of_role, "name = \"\u{1b}[2J\""] {
        let refused = Profile::parse(text).unwrap_err();
        assert!(refused.starts_with("line ") && !refused.contains(char::is_control), "{refused:?}");
    }
}

#[test]
fn a_profile_that_no_run_could_use_is_refused() {
    let refused = |lines: &str| Profile::parse(&format!("name = \"x\"\nrole = \"proxy\"\n{lines}")).unwrap_err();
    assert_eq!(refused(""), "the command is empty");
    assert_eq!(refused("command = [\"x\", \"{tun}\"]\ntyped = \"x\""), "unknown field `typed`");
    let route = Profile::parse("name = \"x\"\nrole = \"route\"\n").unwrap_err();
    assert!(route.starts_with("role = \"route\" has no program") && route.ends_with("or \"attach\""), "{route}");
    assert!(refused("command = [\"x\", \"{tap}\"]").starts_with("{tap} is no placeholder: these are {tun}, "));
    assert!(refused("command = [\"x\", \"{tun}\", \"{config}\"]").contains("no config"));
    assert!(refused("command = [\"x\"]").contains("do not use {tun}"));
    assert!(refused("command = [\"x\", \"{tun}\", \"{key_file}\"]").contains("{key_file} is not for this role"));
    assert!(refused("command = [\"x\", \"{tun}\"]\nsetup = [[]]").contains("the command is empty"));
    assert!(refused("command = [\"x\", \"{tun}\"]\noverhead = 40").contains("overhead is for role = \"tunnel\""));
    let peers = refused("command = [\"x\", \"{tun}\"]\npeer_setup = [[\"y\"]]");
    assert_eq!(peers, "peer_setup is for role = \"tunnel\"");
    let far = |lines: &str| refused(&format!("command = [\"x\", \"{{tun}}\", \"{{far}}\"]\n{lines}"));
    assert!(far("").contains("{far_host} and {far_port} are those of a far_command"));
    assert!(far("far_config = \"\"").contains("with both or the first"));
    assert!(far("far_command = []").contains("the command is empty"));
    assert!(far("far_command = [\"x\", \"{socks5}\"]").contains("leave out upstream = \"direct\", or the far_command"));
    assert!(far("far_command = [\"x\"]\nupstream = \"socks5\"").contains("not for one with a far_command"));
    assert!(far("far_command = [\"x\"]\nprepare = [[]]").contains("the command is empty"));
    let attached = Profile::parse("name = \"x\"\nrole = \"attach\"\ncommand = [\"x\"]\ndevice = false").unwrap_err();
    assert_eq!(attached, "device = false is for role = \"proxy\"");
    let both = refused("command = [\"x\", \"{tun}\", \"{socks5}\"]\nupstream = \"direct\"");
    assert!(both.contains("leave out upstream"), "{both}");
}

#[test]
fn a_proxy_with_a_far_command_sends_its_connections_there() {
    let far = "far_command = [\"xd\", \"{far_host}\", \"{config}\"]\nfar_config = \"port {far_port}\"";
    let command = "name = \"x\"\nrole = \"proxy\"\ncommand = [\"x\", \"{tun}\", \"{far}\"]";
    let profile = Profile::parse(&format!("{command}\n{far}")).unwrap();
    assert_eq!((profile.upstream(), profile.overhead()), (Some(Upstream::Far), 0));
    assert_eq!((profile.config_at(false), profile.missing().unwrap().as_str()), (None, "x"));
}

/// A newer patch level counts as the same version.
#[test]
fn a_profile_knows_the_version_that_it_was_tried_with() {
    let tested = |tested: &str, version: &str| {
        let text = "name = \"x\"\nrole = \"proxy\"\ncommand = [\"x\", \"{tun}\"]\n";
        !Profile::parse(&format!("{text}{tested}")).unwrap().is_for_another(version)
    };
    for version in ["v1.14", "1.14.9", "x version 1.14.0 (2026)", "x v1.14.1, go1.26"] {
        assert!(tested("tested = \"1.14\"", version), "{version}");
    }
    for version in ["v1.15.0", "1.140", "x version 2.1.14", "x"] {
        assert!(!tested("tested = \"1.14\"", version), "{version}");
        assert!(tested("", version), "{version}");
    }
}

#[test]
fn a_command_is_a_profile() {
    let profile = Profile::named("./bin/my-proxy --tun {tun} --proxy 'socks5://{socks5}'").unwrap();
    assert_eq!(profile.name.as_str(), "my-proxy");
    assert_eq!(profile.command, ["./bin/my-proxy", "--tun", "{tun}", "--proxy", "socks5://{socks5}"]);
    assert_eq!(profile.upstream(), Some(Upstream::Socks5));
    assert_eq!(Profile::named("my-proxy {tun} {interface}").unwrap().upstream(), Some(Upstream::Direct));
    for (typed, role, mtu) in [
        ("x {tun} {peer_endpoint}", Role::Tunnel, 1420),
        ("x {tun} --netns={netns}", Role::Attach, 1500),
        ("x {tun} {pid}", Role::Attach, 1500),
        ("x {tun}", Role::Proxy, 1500),
    ] {
        let profile = Profile::named(typed).unwrap();
        assert_eq!((profile.role, profile.device_mtu(1500)), (role, mtu), "{typed}");
    }
    let guess = |typed| Profile::named(typed).unwrap().guess();
    assert!(guess("'a b/x' {tun}").is_some_and(|guess| guess.contains("{peer_endpoint}")));
    for typed in ["x {tun} {socks5}", "x {tun} {port}", "x {tun} {pid}", "kernel", "pasta", "tun2proxy"] {
        assert_eq!(guess(typed), None, "{typed}");
    }
    assert!(Profile::named("x {tun} {pid} {port}").unwrap_err().contains("{port} is not for this role"));
    assert_eq!(Profile::named("my-proxy 'x {tun}").unwrap_err(), "a quote is not closed");
    assert!(Profile::named("my-proxy --tun {mtu}").unwrap_err().contains("do not use {tun}"));
    for typed in ["my-proxy --tun tun0", "./socks5d --listen 1080", "no such profile.toml"] {
        let refused = Profile::named(typed).unwrap_err();
        assert!(refused.contains("do not use {tun}") && refused.contains("such as a SOCKS5 server alone"), "{refused}");
    }
    assert!(Profile::named("my-proxy").unwrap_err().contains("a command has {tun}"));
    assert!(Profile::named("./nowhere.toml").unwrap_err().contains("there is no such file; write a name"));
    assert_eq!(Profile::named("x {tun} -c conf.toml").unwrap().command, ["x", "{tun}", "-c", "conf.toml"]);
}

/// As its authors ship it, a program has no word for what a run could set.
#[test]
fn a_profile_has_words_for_what_a_run_sets() {
    for (words, set) in [
        ("--program lwip", ""),
        ("--program lwip --mtu 9000", "--mtu {mtu}"),
        ("--program lwip --mtu 9000 --max-flows 9", "--mtu {mtu} --max-flows {max_flows}"),
        ("--program tun2proxy --max-flows 9", "--max-sessions {max_flows}"),
        ("--program pasta --mtu 9000", "-m {mtu}"),
        ("--program slirp4netns --inbound", "--api-socket {dir}/api"),
        ("--program sing-box-system --mtu 9000", r#""mtu": {mtu},"#),
        ("--program gotatun --mtu 9000", ""),
    ] {
        let cell = Cell::parse(words).unwrap();
        let profile = cell.program.as_ref().unwrap().profile().unwrap();
        assert_eq!(profile.words_of(&cell).cloned().collect::<Vec<_>>().join(" "), set, "{words}");
        assert_eq!(profile.sets_in_config(), words.contains("sing-box"), "{words}");
        let is_said = profile.command.iter().chain(profile.config_at(false)).any(|word| word.contains("mtu"));
        assert!(!is_said, "{words}");
    }
    let profile = |lines: &str| {
        Profile::parse(&format!("name = \"x\"\nrole = \"proxy\"\ncommand = [\"x\", \"{{tun}}\"]\n{lines}"))
    };
    for (lines, refused) in [
        ("set.mtu = [\"{set}\"]", "{set} is for the config"),
        ("set.mtu = [\"{tap}\"]", "{tap} is no placeholder"),
        ("set.limit = [\"-l\"]", "unknown variant `limit`"),
    ] {
        let reason = profile(lines).unwrap_err();
        assert!(reason.contains(refused), "{reason}");
    }
}

#[test]
fn a_word_for_a_shell_is_named_unless_there_is_a_shell() {
    let hint = |typed: &str| no_shell(&shlex::split(typed).unwrap());
    for (typed, word) in [("x -c $HOME/x.conf", "$HOME/x.conf"), ("~/x {tun}", "~/x"), ("x {tun} > log", ">")] {
        assert_eq!(hint(typed), Some(format!("there is no shell, so {word} is passed as it is")));
    }
    for typed in ["x {tun} a~b", "sh -c 'x $1 > log'", "env A=1 /bin/bash -c 'x $1'"] {
        assert_eq!(hint(typed), None, "{typed}");
    }
}

#[test]
fn a_file_is_a_profile_with_a_name_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a profile.toml");
    let named = |text: &str| {
        fs::write(&path, text).unwrap();
        Profile::named(path.to_str().unwrap())
    };
    let text = "name = \"mine\"\nrole = \"proxy\"\ncommand = [\"x\", \"{tun}\"]\n";
    let mine = named(text).unwrap();
    assert_eq!((mine.name.as_str(), mine.guess()), ("mine", None));
    for reserved in ["tun2proxy", "lwip-published"] {
        let refused = named(&text.replace("mine", reserved)).unwrap_err();
        assert_eq!(refused, format!("the name {reserved} belongs to a profile or a stack of this program"));
    }
    assert!(named(&"#".repeat(70_000)).unwrap_err().contains("at most 65536 bytes"));
    fs::write(&path, [b'#', 0xff, 0xfe]).unwrap();
    let refused = Profile::named(path.to_str().unwrap()).unwrap_err();
    assert_eq!(refused, "invalid utf-8 sequence of 1 bytes from index 1");
    // A program in place of its command.
    let long = format!("\x7fELF{}", "\0".repeat(70_000));
    for program in [long.as_bytes(), b"\x7fELF\xff", b"#!/bin/sh\nexec x \"$1\"\n"] {
        fs::write(&path, program).unwrap();
        let refused = Profile::named(path.to_str().unwrap()).unwrap_err();
        let command =
            format!("it is a program, not a profile; write its command: --program '{} {{tun}} …'", path.display());
        assert!(refused.contains(&command), "{refused}");
    }
    assert!(named(&format!("#!\n{text}")).is_ok(), "a comment");
    // A gigabyte with a hole.
    File::create(&path).unwrap().set_len(1 << 30).unwrap();
    assert!(Profile::named(path.to_str().unwrap()).unwrap_err().contains("at most 65536 bytes"));
    // The caller says which file it is.
    assert!(!Profile::named("/no/such.toml").unwrap_err().contains("such.toml"));
    assert_eq!(Profile::named("./").unwrap_err(), "it is not a regular file");
}
