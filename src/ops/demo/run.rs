//! The course of the demo: its chapters, its verdict, its end.

use std::process::ExitCode;

use super::args::{DemoArgs, DemoCommand, DemoOutput, ProgressOutput};
use super::cluster::DemoCluster;
use super::{fault, gangs, jobs, story, table};
use crate::say::say;
use crate::{ui, view};
use baton_runtime::{shutdown, words};

/// Exit code of a process that was ended by SIGINT, as shells have it.
const INTERRUPTED: u8 = 130;

/// Plays gangs and a TYJob first, because those chapters delete everything they made; then the story whose pods stay.
async fn play(cluster: &mut DemoCluster) -> anyhow::Result<story::StoryOutcome> {
    let mut found = gangs::play(cluster).await?;
    let (job, wrong) = jobs::play(cluster).await?;
    found.extend(wrong);
    let mut outcome = story::play(cluster).await?;
    outcome.report.job = job;
    outcome.report.blame(found);
    Ok(outcome)
}

/// Starts the cluster, plays the story, prints the verdict. A signal ends the daemons and the demo at any point.
pub async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    if let Some(DemoCommand::Fault(fault)) = &args.command {
        fault::run(fault)?;
        return Ok(ExitCode::SUCCESS);
    }
    let stop = shutdown::on_signals()?;
    let json = args.output == Some(DemoOutput::Json);
    let progress = ProgressOutput { to_stderr: json, verbose: args.verbose };
    let started = tokio::select! {
        started = DemoCluster::start(&args, progress) => started,
        () = stop.cancelled() => return Ok(ExitCode::from(INTERRUPTED)),
    };
    let mut cluster = started?;
    if args.ui {
        let (shown, stop) = (cluster.ui()?, stop.clone());
        tokio::spawn(async move {
            let announce = |url: &str| {
                progress.line(format_args!("\nThe cluster in the browser: {url}\n"));
                Ok(())
            };
            if let Err(error) = ui::serve(shown, stop, announce).await {
                progress.line(format_args!("cannot show it: {}", words(error.as_ref())));
            }
        });
    }
    let outcome = tokio::select! {
        outcome = play(&mut cluster) => Some(outcome),
        () = stop.cancelled() => None,
    };
    let ended = match outcome {
        Some(Ok(outcome)) => {
            if json {
                say(serde_json::to_string(&outcome.report)? + "\n")?;
            } else {
                progress.heading("Who holds what");
                progress.line(view::table(&outcome.devices));
                progress.line(table::pods(&outcome.report, args.verbose));
                progress.line(table::verdict(&outcome.report));
            }
            if args.keep || args.ui {
                progress.line(cluster.invitation()?);
                tokio::select! {
                    kept = cluster.keep() => kept?,
                    () = stop.cancelled() => {}
                }
            }
            Ok(if outcome.report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Some(Err(error)) => Err(error),
        None => Ok(ExitCode::from(INTERRUPTED)),
    };
    cluster.stop().await;
    ended
}
