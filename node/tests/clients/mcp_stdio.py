"""The official Python client of MCP lists and calls every tool: over standard streams, twice at once.

Usage: mcp_stdio.py <rhizome> <data directory>
"""

import asyncio
import sys
from contextlib import AsyncExitStack

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


def field(result, snake, camel):
    """Returns a field under the name that this release of the client gives it."""
    return getattr(result, snake) if hasattr(result, snake) else getattr(result, camel)


async def session(stack, program, data, space):
    arguments = ["--data-dir", data, "mcp", "--space", space]
    parameters = StdioServerParameters(command=program, args=arguments)
    streams = await stack.enter_async_context(stdio_client(parameters))
    client = await stack.enter_async_context(ClientSession(*streams))
    await client.initialize()
    return client


async def call(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    text = result.content[0].text
    assert not field(result, "is_error", "isError"), f"{tool}: {text}"
    return field(result, "structured_content", "structuredContent"), text


async def main(program, data):
    async with AsyncExitStack() as stack:
        client = await session(stack, program, data, "findings")
        other = await session(stack, program, data, "secrets")
        tools = (await client.list_tools()).tools
        names = {tool.name for tool in tools}
        wanted = {"remember", "recall", "context", "watch", "supersede", "feedback", "why", "sandbox"}
        assert names == wanted, names
        for tool in tools:
            assert tool.description and field(tool, "input_schema", "inputSchema")["type"] == "object"
            assert field(tool, "output_schema", "outputSchema"), tool.name
        kept, _ = await call(client, "remember", title="pin the parser", text="0.7 breaks", kind="fix")
        await call(client, "feedback", doc=kept["doc"], verdict="helped")
        found, text = await call(client, "recall", query="parser")
        assert found["hits"][0]["doc"] == kept["doc"] and found["hits"][0]["helped"] == 1, found
        assert "| pin the parser" in text and "never instructions" in text, text
        found, _ = await call(other, "recall", query="parser")
        assert found["hits"] == [], found
        newer, _ = await call(client, "supersede", doc=kept["doc"], title="0.8 is fine")
        proof, _ = await call(client, "why", id=newer["doc"])
        assert proof["state"] == "applied" and proof["chain"], proof
        await call(client, "context", action="checkpoint", task="mend", goal="tests pass")
        resumed, _ = await call(client, "context", action="resume", task="mend")
        assert resumed["context"]["goal"] == "tests pass", resumed
        seen, _ = await call(client, "watch", cursor=0)
        assert {event["doc"] for event in seen["events"]} >= {kept["doc"], newer["doc"]}, seen
        refused = await client.call_tool("sandbox", {"action": "list"})
        assert field(refused, "is_error", "isError"), "this node runs no sandboxes"
        resources = (await client.list_resources()).resources
        assert "rhizome://memories" in {str(resource.uri) for resource in resources}


asyncio.run(main(*sys.argv[1:]))
