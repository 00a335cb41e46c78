//! The page in a browser: light and dark, wide and narrow. Needs Chromium.

mod devtools;

use std::path::{Path, PathBuf};
use std::process::Command;

use rust_tun_perf::cell::Layer;
use rust_tun_perf::report::{self, Format, Series};
use rust_tun_perf::sample::{Sample, SampleFile};
use serde_json::{Value, json};

use self::devtools::Browser;

/// The names of Chromium on different systems.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Returns the browser of this machine, if it has one.
fn browser() -> Option<PathBuf> {
    let runs = |name: &&&str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    NAMES.iter().find(runs).map(PathBuf::from)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Writes the page of some files, and returns its path and its content.
fn page(name: &str, files: &[&str]) -> (PathBuf, Vec<Series>) {
    let files: Vec<_> = files.iter().map(|file| SampleFile::read(&root().join(file)).unwrap()).collect();
    let series = Series::of(&files);
    let mut html = Vec::new();
    report::report(&series, Format::Html, &mut html).unwrap();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.html"));
    std::fs::write(&path, html).unwrap();
    (path, series)
}

/// Readers: a name, the width of the window in pixels, and the theme.
const READERS: [(&str, u32, &str); 4] =
    [("desk", 1280, "light"), ("desk", 1280, "dark"), ("tablet", 800, "light"), ("telephone", 420, "dark")];

/// Unfolds the page and returns facts about it, as JSON. Of several pictures of the same data only one may be visible.
const FACTS: &str = r"(() => {
    for (const details of document.querySelectorAll('details')) details.open = true;
    const seen = (element) => element.getClientRects().length > 0;
    const figures = [...document.querySelectorAll('#glance svg')].filter(seen);
    const runs = [...document.querySelectorAll('#glance svg, .bars svg')].filter(seen)
        .flatMap((svg) => [...svg.querySelectorAll('circle')]);
    const luminance = (color) => {
        const [r, g, b] = color.match(/\d+/g).map((part) => {
            const value = part / 255;
            return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = luminance(getComputedStyle(document.body).backgroundColor);
    const contrast = (color) => {
        const [high, low] = [luminance(color), ground].sort((left, right) => right - left);
        return (high + 0.05) / (low + 0.05);
    };
    const texts = [...document.querySelectorAll('h1, h2, p, td, th, figcaption, summary, li, svg text')].filter(seen);
    const inked = (element) => getComputedStyle(element)[element.closest('svg') ? 'fill' : 'color'];
    const marks = runs.map((mark) =>
        mark.getAttribute('fill') === 'none' ? getComputedStyle(mark).stroke : getComputedStyle(mark).fill);
    const small = [...document.querySelectorAll('svg text')].filter(seen)
        .map((text) => [parseFloat(text.getAttribute('font-size')), text.getScreenCTM()])
        .map(([size, matrix]) => size * Math.hypot(matrix.a, matrix.b));
    return JSON.stringify({
        width: document.documentElement.scrollWidth,
        figures: figures.length,
        circles: runs.length,
        ladders: [...document.querySelectorAll('.ladder svg')].filter(seen).length,
        rows: document.querySelectorAll('.repeat tbody tr').length,
        ground: getComputedStyle(document.body).backgroundColor,
        text_contrast: Math.min(...texts.map((text) => contrast(inked(text)))),
        mark_contrast: Math.min(...marks.map(contrast)),
        smallest_px: Math.min(...small),
        unnamed: [...document.querySelectorAll('svg')].filter((svg) => !svg.getAttribute('aria-label')).length,
    });
})()";

/// Returns what is wrong with the layout of a page that is open, as lines: texts of a picture on each other or outside it,
/// tables that are wider than their place, columns without a value, and anchors that are not unique.
const LAYOUT: &str = r"(() => {
    for (const details of document.querySelectorAll('details')) details.open = true;
    const wrong = [];
    const seen = (element) => element.getClientRects().length > 0;
    for (const svg of [...document.querySelectorAll('svg')].filter(seen)) {
        const name = svg.getAttribute('aria-label');
        const edge = svg.getBoundingClientRect();
        const texts = [...svg.querySelectorAll('text')].filter((text) => text.textContent.trim()).map((text) => [text.textContent.trim(), text.getBoundingClientRect()]);
        texts.forEach(([text, box], index) => {
            if (box.left < edge.left - 1 || box.right > edge.right + 1 || box.top < edge.top - 1 || box.bottom > edge.bottom + 1)
                wrong.push(`${name}: ${text} is outside`);
            for (const [other, its] of texts.slice(index + 1)) {
                const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
                const down = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
                if (across > 1 && down > 2) wrong.push(`${name}: ${text} is on ${other}`);
            }
        });
    }
    for (const place of [...document.querySelectorAll('.scroll')].filter(seen)) {
        const name = place.getAttribute('aria-label');
        if (innerWidth >= 1280 && place.scrollWidth > place.clientWidth + 1) wrong.push(`${name} is too wide`);
        if (getComputedStyle(place.querySelector('td')).position !== 'sticky') wrong.push(`${name} has no fixed column`);
        const rows = [...place.querySelectorAll('tbody tr')].map((row) => [...row.children].map((cell) => cell.textContent));
        for (let column = 1; column < rows[0].length; column++)
            if (rows.every((row) => row[column] === '' || row[column] === '–')) wrong.push(`${name}: column ${column} is empty`);
    }
    if (document.documentElement.scrollWidth > innerWidth) wrong.push('the page is too wide');
    const names = [...document.querySelectorAll('main > *')].map((section) => section.id);
    if (new Set(names).size !== names.length) wrong.push(`anchors: ${names}`);
    return wrong.join('\n');
})()";

/// The data of the documents have more cells, and longer names, than the fixed samples.
#[test]
fn on_no_page_is_anything_too_wide_or_on_another_thing() {
    let program = browser();
    skip_if!(program.is_none().then(|| format!("none of {} is installed", NAMES.join(", "))));
    let mut browser = Browser::start(&program.unwrap());
    for name in ["stacks", "requests", "networks", "connections", "programs", "forward", "linux"] {
        let (path, _) = page(&format!("data-{name}"), &[&format!("docs/data/{name}.jsonl")]);
        // The theme moves nothing.
        for (device, width, theme) in [READERS[0], READERS[3]] {
            open(&mut browser, &path, width, theme);
            let wrong = browser.evaluate(LAYOUT);
            assert_eq!(wrong, "", "{name}, {device}, {theme}");
        }
    }
}

/// Opens a page for a reader, and returns the events until it is drawn.
fn open(browser: &mut Browser, path: &Path, width: u32, theme: &str) -> Vec<Value> {
    let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500});
    browser.call("Emulation.setDeviceMetricsOverride", &size);
    let features = json!({"features": [{"name": "prefers-color-scheme", "value": theme}]});
    browser.call("Emulation.setEmulatedMedia", &features);
    browser.open(&format!("file://{}", path.display()))
}

#[test]
fn a_page_is_whole_in_every_theme_and_width() {
    let program = browser();
    skip_if!(program.is_none().then(|| format!("none of {} is installed", NAMES.join(", "))));
    let mut browser = Browser::start(&program.unwrap());
    for (name, files) in [
        ("two-machines", ["tests/data/laptop.jsonl", "tests/data/server.jsonl"].as_slice()),
        ("forwarders", ["tests/data/forward.jsonl"].as_slice()),
        ("both-kinds", ["tests/data/forward.jsonl", "tests/data/laptop.jsonl"].as_slice()),
    ] {
        let (path, series) = page(name, files);
        for (reader, width, theme) in READERS {
            look(&mut browser, &path, &series, (name, reader, width, theme));
        }
    }
}

/// Returns whether a sample is of a layer alone, not of the whole path.
fn is_layer(sample: &Sample) -> bool {
    matches!(sample.cell.layer, Layer::Loopback | Layer::Device | Layer::Stack)
}

fn look(browser: &mut Browser, path: &Path, series: &[Series], reader: (&str, &str, u32, &str)) {
    let (name, device, width, theme) = reader;
    let events = open(browser, path, width, theme);
    let address = browser.evaluate("location.href");
    let of = |method: &str| events.iter().filter(|event| event["method"] == method).collect::<Vec<_>>();
    for method in ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"] {
        assert!(of(method).is_empty(), "{reader:?}: {:?}", of(method));
    }
    let requests: Vec<_> =
        of("Network.requestWillBeSent").iter().map(|event| event["params"]["request"]["url"].clone()).collect();
    assert_eq!(requests, [address], "{reader:?}: only the page itself is requested");

    // Pictures for people to look at.
    browser.picture(&path.with_file_name(format!("{name}-{device}-{theme}.png")));
    let facts: Value = serde_json::from_str(browser.evaluate(FACTS).as_str().unwrap()).unwrap();
    let number = |name: &str| facts[name].as_f64().unwrap();
    assert!(number("width") <= f64::from(width), "{reader:?}: {facts}");
    assert_eq!(facts["figures"], 1, "{reader:?}: either the wide or the narrow picture");
    let samples = || series.iter().flat_map(|one| &one.samples);
    let dots = samples().filter(|sample| sample.is_ok() && !is_layer(sample)).count();
    assert_eq!(facts["circles"], dots, "{reader:?}: a dot for each run");
    assert_eq!(facts["rows"], samples().count(), "{reader:?}: a row for each sample");
    let layers = series.iter().filter(|one| one.samples.iter().any(is_layer)).count();
    assert_eq!(facts["ladders"], layers, "{reader:?}");
    assert_eq!(facts["unnamed"], 0, "{reader:?}: a picture without a name");
    // WCAG 2.1, 1.4.3 and 1.4.11.
    assert!(number("text_contrast") >= 4.5 && number("mark_contrast") >= 3.0, "{reader:?}: {facts}");
    assert!(number("smallest_px") >= 9.0, "{reader:?}: {facts}");
    assert_eq!(browser.evaluate(LAYOUT), "", "{reader:?}");
    assert_eq!(facts["ground"] == "rgb(255, 255, 255)", theme == "light", "{reader:?}: {facts}");
}
