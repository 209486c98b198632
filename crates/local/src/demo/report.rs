//! The page that shows a demo run: one file, nothing loaded from elsewhere.

use std::fmt::Write;

use ostler_core::time::Timestamp;

use super::record::{Expected, JobRecord, Summary};

/// Width of the timeline, in pixels of the drawing.
const WIDTH: f64 = 760.0;

/// Height of a job's row.
const ROW: f64 = 18.0;

const STYLE: &str = "
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2430;--dim:#5d6b7c;--line:#dde3ea;--card:#f6f8fa;
--wait:#c9cfd8;--boot:#e0a63a;--idle:#7fb2e5;--run:#3b8f5a;--bad:#b3382c}
@media(prefers-color-scheme:dark){:root{--bg:#12161c;--fg:#e4e9f0;--dim:#94a1b2;--line:#2a323d;--card:#1a2029;
--wait:#4a5563;--boot:#c08a2a;--idle:#4f86bd;--run:#4fa671;--bad:#e0685c}}
body{font:15px/1.5 system-ui,sans-serif;background:var(--bg);color:var(--fg);max-width:1120px;margin:2rem auto;
padding:0 1rem}h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{color:var(--dim);margin:.3rem 0}
.cards{display:flex;flex-wrap:wrap;gap:.75rem;margin:1.2rem 0}.card{background:var(--card);border:1px solid var(--line);
border-radius:8px;padding:.6rem 1rem;min-width:6.5rem}.card b{display:block;font-size:1.4rem;font-variant-numeric:tabular-nums}
.card span{color:var(--dim);font-size:.8rem}.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.85rem}th,td{text-align:left;padding:.25rem .6rem;
border-bottom:1px solid var(--line);font-variant-numeric:tabular-nums}th{color:var(--dim);font-weight:600}
td.n{text-align:right}svg text{fill:var(--fg);font:11px system-ui,sans-serif}svg .dim{fill:var(--dim)}
.key{display:inline-flex;align-items:center;gap:.35rem;margin-right:1rem;color:var(--dim);font-size:.85rem}
.key i{width:.9rem;height:.7rem;border-radius:2px;display:inline-block}.bad{color:var(--bad)}
";

/// Renders the page. `scale` is world seconds per real second.
pub fn render(jobs: &[JobRecord], summary: &Summary, scale: f64) -> String {
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html><html lang=en><meta charset=utf-8><title>Ostler: demo run</title>\
        <meta name=viewport content='width=device-width'><style>{STYLE}</style><h1>Ostler: demo run</h1>\
        <p>The real function binaries, state machine and templates in the local world. \
        Times are world time: one real second is {scale} s.</p>"
    );
    verdict(&mut page, summary);
    cards(&mut page, summary);
    timeline(&mut page, jobs);
    refusals(&mut page, jobs);
    metrics(&mut page, summary);
    calls(&mut page, summary);
    details(&mut page, jobs);
    page.push_str("</html>\n");
    page
}

fn verdict(page: &mut String, summary: &Summary) {
    if summary.violations.is_empty() {
        page.push_str("<p><b>Every promise held.</b></p>");
        return;
    }
    let _ = write!(
        page,
        "<p class=bad><b>{} promises were broken:</b></p><ul class=bad>",
        summary.violations.len()
    );
    for broken in &summary.violations {
        let _ = write!(page, "<li>{}", escape(broken));
    }
    page.push_str("</ul>");
}

fn cards(page: &mut String, summary: &Summary) {
    let jobs = &summary.jobs;
    let cards = [
        (jobs.posted.to_string(), "jobs posted"),
        (jobs.accepted.to_string(), "accepted"),
        (jobs.served.to_string(), "served"),
        (jobs.refused.to_string(), "refused"),
        (jobs.cancelled.to_string(), "cancelled"),
        (jobs.waiting.to_string(), "still waiting"),
        (summary.runners.started.to_string(), "runners started"),
        (summary.runners.replacements.to_string(), "in place of lost ones"),
        (summary.runners.surplus.to_string(), "that nobody needed"),
        (summary.runners.left_behind.to_string(), "left behind"),
        (format!("{:.0} s", summary.queue_seconds.p50), "median wait"),
        (format!("{:.0} s", summary.queue_seconds.p95), "95th percentile"),
        (summary.transitions_per_job.to_string(), "transitions per job"),
    ];
    page.push_str("<div class=cards>");
    for (value, name) in cards {
        let _ = write!(page, "<div class=card><b>{value}</b><span>{name}</span></div>");
    }
    page.push_str("</div>");
}

fn timeline(page: &mut String, jobs: &[JobRecord]) {
    let Some(start) = jobs.iter().map(|job| job.queued).min() else { return };
    let end = jobs.iter().filter_map(|job| job.done).max().unwrap_or(start);
    let minutes = (end.since(start).as_secs_f64() / 60.0).max(1.0);
    let x = |at: Timestamp| 250.0 + at.since(start).as_secs_f64() / 60.0 / minutes * WIDTH;
    #[allow(clippy::cast_precision_loss, reason = "rows of a demo")]
    let height = jobs.len() as f64 * ROW + 24.0;
    page.push_str("<h2>Every job</h2><p>");
    for (color, name) in
        [("wait", "queued"), ("boot", "machine boots"), ("idle", "online"), ("run", "running")]
    {
        let _ =
            write!(page, "<span class=key><i style='background:var(--{color})'></i>{name}</span>");
    }
    let _ = write!(
        page,
        "</p><div class=scroll><svg width={} height={height} role=img \
        aria-label='Timeline of every job'>",
        250.0 + WIDTH + 20.0
    );
    let step = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0]
        .into_iter()
        .find(|step| minutes / step <= 10.0)
        .unwrap_or(120.0);
    let mut tick = 0.0;
    while tick <= minutes {
        let at = 250.0 + tick / minutes * WIDTH;
        let _ = write!(
            page,
            "<line x1={at:.1} x2={at:.1} y1=16 y2={height} stroke='var(--line)'/>\
            <text class=dim x={at:.1} y=11 text-anchor=middle>{tick} min</text>"
        );
        tick += step;
    }
    let mut y = 20.0;
    for job in jobs {
        let name = format!("{} · {}", job.repository, job.part);
        let _ = write!(page, "<text x=0 y={:.1}>{}</text>", y + 12.0, escape(&cut(&name, 38)));
        let marks = [
            ("wait", Some(job.queued)),
            ("boot", job.launching),
            ("idle", job.online),
            ("run", job.running),
            ("", job.done),
        ];
        let known: Vec<_> =
            marks.iter().filter_map(|(color, at)| at.map(|at| (*color, at))).collect();
        for pair in known.windows(2) {
            let (from, to) = (x(pair[0].1), x(pair[1].1));
            let seconds = pair[1].1.since(pair[0].1).as_secs();
            let _ = write!(
                page,
                "<rect x={from:.1} y={:.1} width={:.1} height={:.1} rx=2 \
                fill='var(--{})'><title>{}: {seconds} s</title></rect>",
                y + 3.0,
                (to - from).max(1.5),
                ROW - 6.0,
                pair[0].0,
                label(pair[0].0)
            );
        }
        if known.len() < 2 {
            let said = job.answers.first().map_or("no answer", |(_, said)| said.as_str());
            let _ = write!(
                page,
                "<text class=dim x={:.1} y={:.1}>{}</text>",
                x(job.queued),
                y + 12.0,
                escape(&cut(said, 80))
            );
        }
        y += ROW;
    }
    page.push_str("</svg></div>");
}

fn label(color: &str) -> &'static str {
    match color {
        "wait" => "queued",
        "boot" => "machine boots",
        "idle" => "online",
        _ => "running",
    }
}

fn refusals(page: &mut String, jobs: &[JobRecord]) {
    page.push_str("<h2>Refused, and why</h2><table><tr><th>Job<th>Repository<th>Labels<th>Answer");
    let refused = |job: &&JobRecord| !job.accepted() && job.expected != Expected::Thief;
    for job in jobs.iter().filter(refused) {
        let said =
            job.answers.first().map_or(String::new(), |(status, said)| format!("{status} {said}"));
        let _ = write!(
            page,
            "<tr><td>{}<td>{}<td>{}<td>{}",
            job.id,
            escape(&job.repository),
            escape(&job.labels),
            escape(&said)
        );
    }
    page.push_str("</table>");
}

fn metrics(page: &mut String, summary: &Summary) {
    page.push_str("<h2>What was counted</h2><table><tr><th>Metric<th>Sum");
    for (metric, sum) in &summary.metrics {
        let _ = write!(page, "<tr><td>{}<td class=n>{sum}", escape(metric));
    }
    page.push_str("</table>");
}

fn calls(page: &mut String, summary: &Summary) {
    page.push_str("<h2>Calls by function</h2><table><tr><th>Caller<th>Call<th>Times");
    for (caller, calls) in &summary.calls {
        for (call, times) in calls {
            let _ =
                write!(page, "<tr><td>{}<td>{}<td class=n>{times}", escape(caller), escape(call));
        }
    }
    page.push_str("</table><h2>Calls to GitHub</h2><table><tr><th>Call<th>Times");
    for (call, times) in &summary.github_calls {
        let _ = write!(page, "<tr><td>{}<td class=n>{times}", escape(call));
    }
    page.push_str("</table>");
}

fn details(page: &mut String, jobs: &[JobRecord]) {
    page.push_str("<h2>Details</h2><div class=scroll><table><tr><th>Job<th>Part<th>Labels<th>Runner<th>Queued<th>Wait<th>Run<th>End");
    for job in jobs {
        let wait =
            job.running.map_or(String::new(), |at| format!("{} s", at.since(job.queued).as_secs()));
        let run = job
            .running
            .zip(job.done)
            .map_or(String::new(), |(from, to)| format!("{} s", to.since(from).as_secs()));
        let _ = write!(
            page,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td class=n>{wait}<td class=n>{run}<td>{}",
            job.id,
            escape(job.part),
            escape(&job.labels),
            escape(job.runner.as_deref().unwrap_or("")),
            job.queued,
            escape(job.conclusion.as_deref().unwrap_or(""))
        );
    }
    page.push_str("</table></div>");
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
