//! Text with placeholders: `{name}`, of `a-z0-9_`. `{{name}}` is the text `{name}`. All other braces are text.

/// A placeholder that has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown(pub String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part<'a> {
    Text(&'a str),
    Placeholder(&'a str),
}

fn next(template: &str) -> Option<(Part<'_>, &str)> {
    let Some(at) = template.find('{') else {
        return (!template.is_empty()).then_some((Part::Text(template), ""));
    };
    if at > 0 {
        let (text, rest) = template.split_at(at);
        return Some((Part::Text(text), rest));
    }
    let named = |open: &str, close: &str| {
        let inside = template.strip_prefix(open)?;
        let (name, rest) = inside.split_at(inside.find(|letter: char| !is_of_name(letter))?);
        Some((name, rest.strip_prefix(close)?)).filter(|(name, _)| !name.is_empty())
    };
    if let Some((name, rest)) = named("{{", "}}") {
        // One brace of each pair.
        return Some((Part::Text(&template[1..name.len() + 3]), rest));
    }
    if let Some((name, rest)) = named("{", "}") {
        return Some((Part::Placeholder(name), rest));
    }
    let (brace, rest) = template.split_at(1);
    Some((Part::Text(brace), rest))
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_'
}

fn parts(mut template: &str) -> impl Iterator<Item = Part<'_>> {
    std::iter::from_fn(move || {
        let (part, rest) = next(template)?;
        template = rest;
        Some(part)
    })
}

/// The names of the placeholders in a template.
pub fn placeholders(template: &str) -> impl Iterator<Item = &str> {
    parts(template).filter_map(|part| match part {
        Part::Placeholder(name) => Some(name),
        Part::Text(_) => None,
    })
}

/// The template with its values.
pub fn fill(template: &str, value: impl Fn(&str) -> Option<String>) -> Result<String, Unknown> {
    let text = |part| match part {
        Part::Text(text) => Ok(text.to_owned()),
        Part::Placeholder(name) => value(name).ok_or_else(|| Unknown(name.to_owned())),
    };
    parts(template).map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_get_their_values_and_other_braces_stay() {
        let filled = |template: &str| fill(template, |name| (name == "tun").then(|| "utun8".to_owned()));
        for (template, text) in [
            ("", ""),
            ("no braces", "no braces"),
            ("--tun={tun}", "--tun=utun8"),
            ("{tun}{tun}", "utun8utun8"),
            ("{{tun}}", "{tun}"),
            ("{{tun}}{tun}", "{tun}utun8"),
            (r#"{"a": {"b": "{tun}"}}"#, r#"{"a": {"b": "utun8"}}"#),
            (r#"{"mtu":{tun}}"#, r#"{"mtu":utun8}"#),
            ("{}{{}}{ tun}{Tun}{tun", "{}{{}}{ tun}{Tun}{tun"),
            ("{{tun}", "{utun8"),
            ("{tun}}", "utun8}"),
            ("é{tun}é{", "éutun8é{"),
        ] {
            assert_eq!(filled(template).unwrap(), text, "{template}");
        }
        assert_eq!(filled("{tun}{other_1}"), Err(Unknown("other_1".to_owned())));
        assert_eq!(placeholders("{a}{{b}}{c{d}").collect::<Vec<_>>(), ["a", "d"]);
    }
}
