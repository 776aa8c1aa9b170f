//! The official conformance suite against our server.
//!
//! The suite calls tools, prompts and resources of its own names, which no user should be offered, so
//! they are in this test alone: [`Everything`] answers those and hands all else to the true server,
//! behind the same HTTP layer, sessions and checks. What the suite says about a server without them is
//! `a_users_profile_passes_what_applies_to_it`.
#![expect(
    deprecated,
    reason = "the suite tests sampling and logging, which newer revisions drop"
)]
use std::{path::PathBuf, process::Command, sync::Arc, time::Duration};

use axum::{Router, extract::Request, response::Response, routing::any};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestParams,
        CompleteResult, CompletionInfo, ContentBlock, CreateMessageRequestParams, ElicitRequest,
        ElicitRequestParams, GetPromptRequestParams, GetPromptResponse, GetPromptResult,
        ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
        LoggingLevel, LoggingMessageNotificationParam, PaginatedRequestParams,
        ProgressNotificationParam, Prompt, PromptArgument, PromptMessage,
        ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Resource,
        ResourceContents, ResourceTemplate, Role, SamplingMessage, ServerCapabilities,
        ServerConfig, ServerRequest, SetLevelRequestParams, SubscribeRequestParams, Tool,
        UnsubscribeRequestParams,
    },
    service::RequestContext,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{http, server::Server};
use crate::{
    api::listen::{self, MAX_CONNECTIONS},
    daemon::caller::Caller,
    world::World,
};

/// The version whose scenarios we know.
const SUITE: &str = "@modelcontextprotocol/conformance@0.1.16";
/// A red pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
/// A sound of no length.
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=";
/// What a user's profile has no part in: these need tools, prompts or resources of the suite's names,
/// or offers that we do not make (prompts, completion, log messages, sampling, elicitation).
const APPLY: [&str; 6] = [
    "server-initialize",
    "ping",
    "tools-list",
    "resources-list",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
];

/// Our server, and what the suite asks for beside it.
struct Everything(Server);

fn text_tools() -> Vec<Tool> {
    let empty = || json!({"type": "object", "properties": {}});
    let takes = |name: &str| {
        let mut schema = json!({"type": "object", "required": [name]});
        schema["properties"] = json!({ name: {"type": "string"} });
        schema
    };
    let dialect = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {"type": "object", "properties": {
            "street": {"type": "string"}, "city": {"type": "string"}}}},
        "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
        "additionalProperties": false,
    });
    [
        ("test_simple_text", empty()),
        ("test_image_content", empty()),
        ("test_audio_content", empty()),
        ("test_embedded_resource", empty()),
        ("test_multiple_content_types", empty()),
        ("test_tool_with_logging", empty()),
        ("test_tool_with_progress", empty()),
        ("test_error_handling", empty()),
        ("test_reconnection", empty()),
        ("test_sampling", takes("prompt")),
        ("test_elicitation", takes("message")),
        ("test_elicitation_sep1034_defaults", empty()),
        ("test_elicitation_sep1330_enums", empty()),
        ("json_schema_2020_12_tool", dialect),
    ]
    .into_iter()
    .map(|(name, schema)| {
        Tool::new(
            name,
            "For the suite",
            Arc::new(schema.as_object().unwrap().clone()),
        )
    })
    .collect()
}

fn resource(uri: &str, mime: &str, text: &str) -> ResourceContents {
    ResourceContents::text(text, uri).with_mime_type(mime)
}

fn said(text: impl Into<String>) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

async fn elicit(
    context: &RequestContext<RoleServer>,
    message: &str,
    schema: Value,
) -> Result<Value, ErrorData> {
    let params = json!({"message": message, "requestedSchema": schema});
    let params: ElicitRequestParams = serde_json::from_value(params).unwrap();
    let request = ServerRequest::ElicitRequest(ElicitRequest::new(params));
    let answer = context.peer.send_request(request).await;
    let answer = answer.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
    Ok(serde_json::to_value(answer).unwrap())
}

impl Everything {
    async fn test(
        &self,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Option<Result<CallToolResult, ErrorData>> {
        let pause = || tokio::time::sleep(Duration::from_millis(50));
        let argument = |name: &str| {
            let arguments = request.arguments.as_ref();
            let value = arguments.and_then(|given| given.get(name)?.as_str());
            value.unwrap_or_default().to_owned()
        };
        let result = match &*request.name {
            "test_simple_text" => said("This is a simple text response for testing."),
            "test_reconnection" => said("Reconnection test completed"),
            "json_schema_2020_12_tool" => said("JSON Schema 2020-12"),
            "test_image_content" => {
                CallToolResult::success(vec![ContentBlock::image(PNG, "image/png")])
            }
            "test_audio_content" => {
                CallToolResult::success(vec![ContentBlock::audio(WAV, "audio/wav")])
            }
            "test_embedded_resource" => {
                let text = "This is an embedded resource content.";
                let contents = resource("test://embedded-resource", "text/plain", text);
                CallToolResult::success(vec![ContentBlock::resource(contents)])
            }
            "test_multiple_content_types" => {
                let text = r#"{"test":"data","value":123}"#;
                let contents = resource("test://mixed-content-resource", "application/json", text);
                CallToolResult::success(vec![
                    ContentBlock::text("Multiple content types test:"),
                    ContentBlock::image(PNG, "image/png"),
                    ContentBlock::resource(contents),
                ])
            }
            "test_error_handling" => {
                let text = "This tool intentionally returns an error for testing";
                CallToolResult::error(vec![ContentBlock::text(text)])
            }
            "test_tool_with_logging" => {
                for line in [
                    "Tool execution started",
                    "Tool processing data",
                    "Tool execution completed",
                ] {
                    let line =
                        LoggingMessageNotificationParam::new(LoggingLevel::Info, line.into());
                    context.peer.notify_logging_message(line).await.unwrap();
                    pause().await;
                }
                said("logged")
            }
            "test_tool_with_progress" => {
                for done in [0.0, 50.0, 100.0] {
                    if let Some(token) = context.meta.get_progress_token() {
                        let mut step = ProgressNotificationParam::new(token, done);
                        step.total = Some(100.0);
                        context.peer.notify_progress(step).await.unwrap();
                    }
                    pause().await;
                }
                said("done")
            }
            "test_sampling" => {
                let message = SamplingMessage::user_text(argument("prompt"));
                let asked = CreateMessageRequestParams::new(vec![message], 100);
                match context.peer.create_message(asked).await {
                    Ok(answer) => {
                        let answer = serde_json::to_value(answer).unwrap();
                        let text = answer["content"]["text"].as_str().unwrap_or_default();
                        said(format!("LLM response: {text}"))
                    }
                    Err(error) => {
                        return Some(Err(ErrorData::internal_error(error.to_string(), None)));
                    }
                }
            }
            "test_elicitation" => {
                let schema = json!({"type": "object", "properties": {
                    "username": {"type": "string", "description": "User's response"},
                    "email": {"type": "string", "description": "User's email address"},
                }, "required": ["username", "email"]});
                match elicit(context, &argument("message"), schema).await {
                    Ok(answer) => said(format!("User response: {answer}")),
                    Err(error) => return Some(Err(error)),
                }
            }
            "test_elicitation_sep1034_defaults" => {
                let schema = json!({"type": "object", "properties": {
                    "name": {"type": "string", "default": "John Doe"},
                    "age": {"type": "integer", "default": 30},
                    "score": {"type": "number", "default": 95.5},
                    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
                    "verified": {"type": "boolean", "default": true},
                }, "required": []});
                match elicit(context, "defaults", schema).await {
                    Ok(answer) => said(format!("Elicitation completed: {answer}")),
                    Err(error) => return Some(Err(error)),
                }
            }
            "test_elicitation_sep1330_enums" => {
                let titled = |many: &str| {
                    json!([
                        {"const": "value1", "title": format!("First {many}")},
                        {"const": "value2", "title": format!("Second {many}")},
                        {"const": "value3", "title": format!("Third {many}")},
                    ])
                };
                let plain = json!(["option1", "option2", "option3"]);
                let schema = json!({"type": "object", "properties": {
                    "untitledSingle": {"type": "string", "enum": plain},
                    "titledSingle": {"type": "string", "oneOf": titled("Option")},
                    "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"],
                        "enumNames": ["Option One", "Option Two", "Option Three"]},
                    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
                    "titledMulti": {"type": "array", "items": {"anyOf": titled("Choice")}},
                }, "required": []});
                match elicit(context, "enums", schema).await {
                    Ok(answer) => said(format!("Elicitation completed: {answer}")),
                    Err(error) => return Some(Err(error)),
                }
            }
            _ => return None,
        };
        Some(Ok(result))
    }
}

fn prompts() -> Vec<Prompt> {
    let takes = |names: &[&str]| {
        let arguments = names.iter().map(|name| {
            let mut argument = PromptArgument::new(*name);
            argument.description = Some("for the suite".to_owned());
            argument.required = Some(true);
            argument
        });
        Some(arguments.collect::<Vec<_>>())
    };
    [
        ("test_simple_prompt", None),
        ("test_prompt_with_arguments", takes(&["arg1", "arg2"])),
        (
            "test_prompt_with_embedded_resource",
            takes(&["resourceUri"]),
        ),
        ("test_prompt_with_image", None),
    ]
    .into_iter()
    .map(|(name, arguments)| Prompt::new(name, Some("For the suite"), arguments))
    .collect()
}

impl ServerHandler for Everything {
    fn get_info(&self) -> ServerConfig {
        let mut info = self.0.get_info();
        info.capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_prompts()
            .enable_logging()
            .enable_completions()
            .build();
        info
    }

    async fn list_tools(
        &self,
        page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut listed = self.0.list_tools(page, context).await?;
        listed.tools.extend(text_tools());
        Ok(listed)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        match self.test(&request, &context).await {
            Some(result) => result.map(Into::into),
            None => self.0.call_tool(request, context).await,
        }
    }

    async fn set_level(
        &self,
        _: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Ok(CompleteResult::new(CompletionInfo::default()))
    }

    async fn list_resources(
        &self,
        page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let mut listed = self.0.list_resources(page, context).await?;
        let known = [
            "test://static-text",
            "test://static-binary",
            "test://watched-resource",
        ];
        listed
            .resources
            .extend(known.map(|uri| Resource::new(uri, uri).with_description("For the suite")));
        Ok(listed)
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let template = ResourceTemplate::new("test://template/{id}/data", "template");
        Ok(ListResourceTemplatesResult::with_all_items(vec![template]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri.clone();
        let contents = match &uri[..] {
            "test://static-text" => resource(
                &uri,
                "text/plain",
                "This is the content of the static text resource.",
            ),
            "test://static-binary" => ResourceContents::blob(PNG, &uri).with_mime_type("image/png"),
            "test://template/123/data" => {
                let text = r#"{"id":"123","templateTest":true,"data":"Data for ID: 123"}"#;
                resource(&uri, "application/json", text)
            }
            _ => return self.0.read_resource(request, context).await,
        };
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if request.uri == "test://watched-resource" {
            return Ok(());
        }
        self.0.subscribe(request, context).await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.0.unsubscribe(request, context).await
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(ListPromptsResult::with_all_items(prompts()))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let argument = |name: &str| {
            let arguments = request.arguments.as_ref();
            let value = arguments.and_then(|given| serde_json::to_value(given.get(name)?).ok());
            let value = value.and_then(|value| value.as_str().map(str::to_owned));
            value.unwrap_or_default()
        };
        let says = |content: Value| -> PromptMessage {
            serde_json::from_value(json!({"role": Role::User, "content": content})).unwrap()
        };
        let words = |text: String| says(json!({"type": "text", "text": text}));
        let messages = match &request.name[..] {
            "test_simple_prompt" => vec![words("This is a simple prompt for testing.".into())],
            "test_prompt_with_arguments" => vec![words(format!(
                "Prompt with arguments: arg1='{}', arg2='{}'",
                argument("arg1"),
                argument("arg2")
            ))],
            "test_prompt_with_embedded_resource" => vec![
                says(json!({"type": "resource", "resource": {
                    "uri": argument("resourceUri"), "mimeType": "text/plain",
                    "text": "Embedded resource content for testing."}})),
                words("Please process the embedded resource above.".into()),
            ],
            "test_prompt_with_image" => vec![
                says(json!({"type": "image", "data": PNG, "mimeType": "image/png"})),
                words("Please analyze the image above.".into()),
            ],
            _ => return Err(ErrorData::invalid_params("unknown prompt", None)),
        };
        Ok(GetPromptResult::new(messages).into())
    }
}

/// Serves `/mcp` on a port of loopback, as over TCP; `suite` adds what the suite asks for.
async fn listen(world: &World, suite: bool) -> String {
    let node = world.node();
    let sessions = node.mcp.of(&Caller::Owner).unwrap();
    let (session, _) = world.session(json!({"space": "findings"})).await.unwrap();
    let config = http::config(&node, true);
    let router = Router::new().route(
        "/mcp",
        any(move |request: Request| {
            let (session, sessions, config) =
                (session.clone(), Arc::clone(&sessions), config.clone());
            let server = move || {
                let profiles = super::profile::Profiles::of(&[], false).unwrap();
                Server::new(session.clone(), profiles)
            };
            async move {
                let response = match suite {
                    true => {
                        let server = move || Everything(server());
                        http::answer(server, sessions, config, request).await
                    }
                    false => http::answer(server, sessions, config, request).await,
                };
                Response::from(response.map(axum::body::Body::new))
            }
        }),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(listen::listen(
        world.node(),
        listener,
        router,
        MAX_CONNECTIONS,
    ));
    format!("http://localhost:{}/mcp", address.port())
}

/// Returns a command that runs the suite, if the tests may fetch it.
fn suite() -> Option<Command> {
    if std::env::var_os("RHIZOME_TEST_NPX").is_none() {
        eprintln!("skipped: MCP conformance suite: set RHIZOME_TEST_NPX=1 to fetch it with npx");
        return None;
    }
    let mut command = Command::new("npx");
    command.args(["-y", "-p", "node@22", "-p", SUITE, "conformance"]);
    Some(command)
}

fn run(mut command: Command, url: &str, scenario: Option<&str>, results: PathBuf) -> String {
    command.args(["server", "--url", url]).current_dir(results);
    if let Some(scenario) = scenario {
        command.args(["--scenario", scenario]);
    }
    let done = command.output().unwrap();
    let said =
        String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{scenario:?}: {said}");
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes() {
    let Some(command) = suite() else { return };
    let world = World::new().await;
    let url = listen(&world, true).await;
    let results = tempfile::tempdir().unwrap();
    let dir = results.path().to_owned();
    let said = tokio::task::spawn_blocking(move || run(command, &url, None, dir))
        .await
        .unwrap();
    assert!(said.contains("0 failed"), "{said}");
    world.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_users_profile_passes_what_applies_to_it() {
    if suite().is_none() {
        return;
    }
    let world = World::new().await;
    let url = listen(&world, false).await;
    for scenario in APPLY {
        let results = tempfile::tempdir().unwrap();
        let (url, dir) = (url.clone(), results.path().to_owned());
        let command = suite().unwrap();
        tokio::task::spawn_blocking(move || run(command, &url, Some(scenario), dir))
            .await
            .unwrap();
    }
    world.daemon.shutdown().await;
}
