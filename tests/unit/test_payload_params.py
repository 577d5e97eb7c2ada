"""Keys and addresses are kept out of payloads, by name."""

from __future__ import annotations

import pytest

from ctxstore.errors import ConfigurationError, PayloadError
from ctxstore.payload import codec
from ctxstore.payload.codec import check_params

ID = "0198f2c4-7a10-7c31-9d55-3b1f0e6a9c42"
SECRET = "sk-very-secret"
NAMES = [
    *("api_key", "API-KEY", "apiKey", "key", "x-api-key", "token", "access_token", "Authorization", "auth", "password"),
    *("db_password", "secret", "client_secret", "aws_secret_access_key", "private_key", "credentials", "Cookie"),
    *("proxy-authorization", "authorization_token", "bearer"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda d: d, "params.{}"),
        (lambda d: {"extra_body": d}, "params.extra_body.{}"),
        (lambda d: {"tools": [{"type": "mcp"}, d]}, "params.tools[1].{}"),
        (lambda d: {"extra": ({"options": d},)}, "params.extra[0].options.{}"),
    ],
)
def test_a_secret_is_refused_by_name_and_never_shown(name, wrap, path):
    params = {"temperature": 0.2, **wrap({name: SECRET})}
    with pytest.raises(ConfigurationError) as caught:
        check_params(params)
    assert path.format(name) in str(caught.value)
    assert SECRET not in str(caught.value)
    with pytest.raises(PayloadError) as refused:
        codec.load({"schema_version": 3, "id": ID, "params": params})
    assert path.format(name) in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("name", ["base_url", "baseURL", "api_base", "headers", "extra_headers", "default_headers"])
def test_where_a_request_goes_is_refused(name):
    for params in ({name: "https://evil.test"}, {"extra": {name: {"Authorization": SECRET}}}):
        with pytest.raises(ConfigurationError, match=name):
            check_params(params)
        with pytest.raises(PayloadError, match=name):
            codec.load({"schema_version": 3, "id": ID, "params": params})


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.2, "max_tokens": 5, "max_completion_tokens": 6, "top_k": 3, "stop": ["key", "password"]},
        {"prompt_cache_key": "thread", "safety_identifier": "u", "user": "u", "logit_bias": {"50256": -100}},
        {"thinking": {"type": "enabled", "budget_tokens": 1000}, "store": False, "service_tier": "flex"},
        {"response_format": {"json_schema": {"schema": {"properties": {"password": {"type": "string"}}}}}},
        {"tools": [{"parameters": {"properties": {"token": {"type": "string"}}, "required": ["token"]}}]},
        {"schema": {"$defs": {"Key": {"properties": {"key": {"type": "string"}}}}}},
    ],
)
def test_ordinary_parameters_pass(params):
    check_params(params)
    assert codec.load({"schema_version": 3, "id": ID, "params": params}).head.params == params


def test_a_secret_beneath_a_schema_is_still_found():
    with pytest.raises(ConfigurationError, match=r"params\.properties\.login\.password"):
        check_params({"properties": {"login": {"password": SECRET}}})


def test_older_versions_knew_no_parameters():
    assert codec.load({"schema_version": 2, "id": ID, "messages": []}).head.params == {}
