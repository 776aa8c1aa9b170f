//! `rhizome nodes`: what the nodes of the mesh are and have room for.

use super::{Context, Failure, short};
use crate::api::types::{
    mesh::PeerState,
    remote::{Facts, NodeFacts, Nodes},
};

pub(crate) async fn nodes(context: &Context) -> Result<(), Failure> {
    let answer: Nodes = context.client.get("/v1/nodes").await?;
    let columns = [
        "node",
        "name",
        "state",
        "runs",
        "cores",
        "memory",
        "disk",
        "sandboxes",
        "snapshots",
        "images",
        "labels",
    ];
    let none = "no nodes; found a mesh with `rhizome init` or join one with `rhizome join`";
    context.ui.list(&answer.nodes, none, columns, row)?;
    for node in &answer.nodes {
        if let Some(problem) = &node.problem {
            context
                .ui
                .status(&format!("node {} did not answer: {problem}", node.node));
        }
    }
    Ok(())
}

fn row(node: &NodeFacts) -> [String; 11] {
    let state = match node.state {
        PeerState::This => "this node",
        PeerState::Connected => "connected",
        PeerState::Gone => "gone",
        PeerState::Never => "never seen",
    };
    let of =
        |say: &dyn Fn(&Facts) -> String| node.facts.as_ref().map_or_else(|| "-".to_owned(), say);
    [
        short(&node.node.id),
        node.node.name.clone(),
        state.to_owned(),
        of(&runs),
        of(&|facts| facts.cores.to_string()),
        of(&|facts| format!("{} of {} MiB", facts.memory_free_mib, facts.memory_mib)),
        of(&|facts| format!("{} MiB", facts.disk_free_mib)),
        of(&|facts| facts.sandboxes.to_string()),
        of(&|facts| facts.snapshots.len().to_string()),
        of(&|facts| {
            let names: std::collections::BTreeSet<_> = facts
                .images
                .iter()
                .map(|image| image.name.as_str())
                .collect();
            or_dash(&names.into_iter().collect::<Vec<_>>().join(", "))
        }),
        of(&|facts| {
            let labels: Vec<_> = facts
                .labels
                .iter()
                .map(|(name, value)| match &value[..] {
                    "" => name.clone(),
                    value => format!("{name}={value}"),
                })
                .collect();
            or_dash(&labels.join(", "))
        }),
    ]
}

fn runs(facts: &Facts) -> String {
    let drivers: Vec<_> = facts
        .drivers
        .iter()
        .map(|driver| match &driver.accel {
            Some(accel) => format!("{} ({accel})", driver.name),
            None => driver.name.clone(),
        })
        .collect();
    let mut said = or_dash(&drivers.join(", "));
    if !facts.open && !facts.drivers.is_empty() {
        said.push_str(", for its owner alone");
    }
    if facts.on_battery {
        said.push_str(", on battery");
    }
    said
}

fn or_dash(text: &str) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        text.to_owned()
    }
}
