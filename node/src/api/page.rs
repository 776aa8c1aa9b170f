//! Listings, a page at a time: `limit` and `cursor` in, `next` out.
//!
//! A cursor names the last item that was told, and its place in case that item is gone meanwhile. So
//! what comes or goes elsewhere in the list moves nothing twice into view and nothing out of it.
use std::{collections::BTreeMap, sync::Arc};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{Method, Uri, header, uri::PathAndQuery},
    middleware::Next,
    response::{IntoResponse, Response},
};
use data_encoding::BASE64URL_NOPAD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::table::{Described, Listing, is_for};
use crate::error::ApiError;

/// The most items of a page.
const MAX_LIMIT: usize = 1_000;
/// The most items of a page that says no limit but goes on from a cursor.
const DEFAULT_LIMIT: usize = 100;
/// The longest cursor.
const MAX_CURSOR: usize = 2_048;
/// The largest answer that is cut into pages.
const MAX_LIST_BYTES: usize = 64 * 1024 * 1024;

/// What every listing takes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub(crate) struct PageParams {
    /// At most this many, 1,000 at most; all of them where neither this nor `cursor` is given.
    #[schemars(range(min = 1))]
    pub(crate) limit: Option<usize>,
    /// The `next` of the page before.
    pub(crate) cursor: Option<String>,
}

/// Where a page ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cursor {
    /// How many items came before.
    #[serde(rename = "n")]
    pub(crate) told: usize,
    /// What names the last of them, or its place.
    #[serde(rename = "k")]
    pub(crate) key: String,
}

impl Cursor {
    pub(crate) fn encode(&self) -> String {
        let json = serde_json::to_vec(self).expect("a cursor is plain JSON");
        BASE64URL_NOPAD.encode(&json)
    }

    pub(crate) fn parse(text: &str) -> Result<Self, ApiError> {
        if text.len() > MAX_CURSOR {
            return Err(Self::foreign());
        }
        let json = BASE64URL_NOPAD.decode(text.as_bytes()).ok();
        let cursor = json.and_then(|json| serde_json::from_slice(&json).ok());
        cursor.ok_or_else(Self::foreign)
    }

    /// Refuses what is no cursor of this list.
    pub(crate) fn foreign() -> ApiError {
        ApiError::bad_request("the cursor is none of this API's")
            .hint("pass the `next` of the page before as it is, or leave it out to begin anew")
    }

    /// Returns where to go on in a list of `keys`.
    pub(crate) fn place<'a>(&self, mut keys: impl Iterator<Item = &'a str>) -> usize {
        let found = keys.position(|key| key == self.key);
        found.map_or(self.told, |at| at + 1)
    }
}

/// The routes whose answers are cut into pages.
#[derive(Debug, Clone)]
pub(crate) struct Lists(Arc<BTreeMap<&'static str, Listing>>);

impl Lists {
    pub(crate) fn new(described: &[Described]) -> Self {
        let lists = described.iter().filter(|route| route.method == Method::GET);
        let lists = lists.filter_map(|route| Some((route.path, route.lists?)));
        Self(Arc::new(
            lists.filter(|(_, list)| !list.by_handler).collect(),
        ))
    }
}

/// Cuts the answer of a listing to the page that is asked for.
pub(crate) async fn layer(State(lists): State<Lists>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let listing = match *request.method() == Method::GET && request.uri().query().is_some() {
        true => lists.0.iter().find(|(template, _)| is_for(template, path)),
        false => None,
    };
    let listing = listing.map(|(_, listing)| *listing);
    match listing {
        Some(listing) => cut(listing, request, next).await,
        None => next.run(request).await,
    }
}

async fn cut(listing: Listing, mut request: Request, next: Next) -> Response {
    let page = match take_params(&mut request) {
        Ok(page) => page,
        Err(error) => return error.into_response(),
    };
    let response = next.run(request).await;
    let Some(page) = page.filter(|_| response.status().is_success()) else {
        return response;
    };
    match cut_answer(listing, &page, response).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

/// Takes `limit` and `cursor` out of the query: the route itself does not know them.
fn take_params(request: &mut Request) -> Result<Option<PageParams>, ApiError> {
    let Some(query) = request.uri().query() else {
        return Ok(None);
    };
    let is_ours = |pair: &&str| {
        let name = pair.split('=').next().unwrap_or_default();
        name == "limit" || name == "cursor"
    };
    let (ours, others): (Vec<&str>, Vec<&str>) = query.split('&').partition(is_ours);
    if ours.is_empty() {
        return Ok(None);
    }
    let uri: Uri = format!("/?{}", ours.join("&"))
        .parse()
        .map_err(|_| ApiError::bad_request("the query is not one that this route takes"))?;
    let super::extract::Params(page) = super::extract::parse_query::<PageParams>(&uri)?;
    let path = request.uri().path();
    let path = match others.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", others.join("&")),
    };
    let path: PathAndQuery = path
        .parse()
        .map_err(|_| ApiError::bad_request("the query is not one that this route takes"))?;
    let mut parts = request.uri().clone().into_parts();
    parts.path_and_query = Some(path);
    *request.uri_mut() = Uri::from_parts(parts)
        .map_err(|_| ApiError::bad_request("the query is not one that this route takes"))?;
    if page.limit == Some(0) {
        return Err(ApiError::bad_request("`limit` is 1 at least"));
    }
    Ok(Some(page))
}

async fn cut_answer(
    listing: Listing,
    page: &PageParams,
    response: Response,
) -> Result<Response, ApiError> {
    let cursor = page.cursor.as_deref().map(Cursor::parse).transpose()?;
    let (mut parts, body) = response.into_parts();
    let broken = |_| ApiError::internal("a listing could not be cut into pages");
    let bytes = axum::body::to_bytes(body, MAX_LIST_BYTES)
        .await
        .map_err(broken)?;
    let mut answer: BTreeMap<String, Value> = serde_json::from_slice(&bytes)
        .map_err(|_| ApiError::internal("a listing is no JSON object"))?;
    let Some(Value::Array(items)) = answer.get_mut(listing.field) else {
        return Err(ApiError::internal("a listing has no list"));
    };
    let key_of = |item: &Value| {
        let key = item.pointer(listing.key);
        key.map_or_else(String::new, |key| match key {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })
    };
    let keys: Vec<String> = items.iter().map(key_of).collect();
    let start = cursor.map_or(0, |cursor| cursor.place(keys.iter().map(String::as_str)));
    let limit = page.limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let start = start.min(items.len());
    let end = start.saturating_add(limit).min(items.len());
    let more = end < items.len();
    *items = items[start..end].to_vec();
    if more {
        let cursor = Cursor {
            told: end,
            key: keys[end - 1].clone(),
        };
        answer.insert("next".to_owned(), cursor.encode().into());
    }
    let bytes = serde_json::to_vec(&answer).expect("JSON becomes JSON");
    parts.headers.remove(header::CONTENT_LENGTH);
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_finds_its_place_though_the_list_changes() {
        let cursor = Cursor {
            told: 2,
            key: "b".into(),
        };
        assert_eq!(Cursor::parse(&cursor.encode()).unwrap(), cursor);
        assert_eq!(cursor.place(["a", "b", "c"].into_iter()), 2);
        // One more before it: nothing is told twice.
        assert_eq!(cursor.place(["x", "a", "b", "c"].into_iter()), 3);
        // Itself gone: by its place.
        assert_eq!(cursor.place(["a", "c", "d"].into_iter()), 2);
        for bad in ["", "%", "bm8", &"A".repeat(4_000)] {
            assert!(Cursor::parse(bad).is_err(), "{bad}");
        }
    }
}
