//! `leasehold doctor`: what the set-up guarantees.

use leasehold::engine::Safety;
use leasehold::engine::doctor::{Finding, Report, Verdict, Weight};
use leasehold::{ErrorKind, Locks, Ttl};
use serde_json::json;

use super::Context;
use crate::args::DoctorArgs;
use crate::exit::{self, Outcome};
use crate::output;

pub(super) async fn doctor(context: Context, args: DoctorArgs) -> Outcome {
    let ttl = Ttl::new(args.ttl)?;
    // Its warnings are among the findings.
    let report = match Locks::connect(&context.url).await {
        Ok(locks) => {
            context.connected.replace(Some(locks.clone()));
            locks.doctor(ttl).await
        }
        Err(error) if error.kind() == ErrorKind::EngineUnfit => Report::refused(&error),
        Err(error) => return Err(error.into()),
    };
    let code = exit::of_report(&report, args.strict);
    match context.json {
        true => output::json_line(&to_json(&report, code))?,
        false => output::line(&to_text(&report))?,
    }
    Ok(code)
}

fn to_json(report: &Report, code: i32) -> serde_json::Value {
    let findings = report.findings.iter().map(|finding| {
        json!({
            "id": finding.id,
            "weight": finding.weight.as_str(),
            "accepted": finding.accepted,
            "place": finding.place,
            "seen": finding.seen,
            "means": finding.means,
            "fix": finding.fix,
        })
    });
    json!({
        "engine": report.location,
        "verdict": report.verdict.as_str(),
        "exit_code": code,
        "findings": findings.collect::<Vec<_>>(),
    })
}

fn to_text(report: &Report) -> String {
    let width = report.findings.iter().map(|finding| finding.id.len()).max();
    let width = width.unwrap_or(0);
    let line = |finding: &Finding| {
        let label = match finding.weight {
            _ if finding.accepted => "accepted",
            Weight::Good => "ok",
            Weight::Unknown => "unknown",
            Weight::Warning => "warning",
            Weight::Efficiency => "weak",
            _ => "unfit",
        };
        format!("{label:8}  {:width$}  {finding}", finding.id)
    };
    // The worst last, next to the verdict.
    let mut findings: Vec<_> = report.findings.iter().collect();
    findings.sort_by_key(|finding| finding.weight);
    let mut lines = vec![report.location.clone(), String::new()];
    lines.extend(findings.into_iter().map(line));
    lines.push(String::new());
    lines.push(verdict(report));
    lines.join("\n")
}

/// What the set-up is fit for, and what would lift it.
fn verdict(report: &Report) -> String {
    let count = |weight| {
        let findings = report.findings.iter();
        findings.filter(|finding| finding.weight == weight).count()
    };
    let (weak, unknown) = (count(Weight::Efficiency), count(Weight::Unknown));
    let known = match unknown {
        0 => String::new(),
        _ => format!(", as far as can be seen ({unknown} unknown)"),
    };
    match (report.verdict, report.promised) {
        (Verdict::Unfit, _) => "Verdict: unfit for locks. Mend what is marked unfit.".to_owned(),
        (Verdict::Efficiency, Some(Safety::Correctness)) => format!(
            "Verdict: fit for efficiency: a failure of the store can let a second holder in. Fit for correctness once the {weak} marked weak are mended{known}."
        ),
        (Verdict::Efficiency, _) => format!(
            "Verdict: fit for efficiency{known}: a failure of the store can let a second holder in. For correctness, check the fencing token at the resource, or use an engine that promises it (docs/choosing-an-engine.md)."
        ),
        _ => format!(
            "Verdict: fit for correctness{known}: two never hold a lock at once within its validity."
        ),
    }
}
