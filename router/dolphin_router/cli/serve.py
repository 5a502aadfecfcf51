"""Run a router."""

from __future__ import annotations

import argparse
import ipaddress
import json
import logging
import os
import sys
from pathlib import Path
from typing import get_args

from dolphin_router.contract import DocumentError, EngineName, RouterConfig, read_document
from dolphin_router.process.options import Options

_ENGINES = get_args(EngineName)
_LEVELS = ("debug", "info", "warning", "error")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    what = parser.add_argument_group("what to do, by a file that is read again when it changes, or by flags")
    what.add_argument("--config", type=Path, metavar="FILE", help="YAML or JSON; see docs/configuration.md")
    what.add_argument("--engine", choices=_ENGINES, help="the workers' protocol")
    for role in ("prefill", "decode", "aggregated"):
        what.add_argument(f"--{role}", nargs="+", action="extend", metavar="URL", help=f"{role} workers")
    what.add_argument("--table", metavar="FILE", help="routing table; without one every prefill is remote")
    what.add_argument("--explain", action="store_true", help="let clients ask for the decision in headers")
    how = parser.add_argument_group("how to run")
    how.add_argument("--host", default=Options.host, help="address to listen on; %(default)s unless given")
    how.add_argument("--port", type=_port, default=Options.port, help="%(default)s unless given; 0 for a free one")
    how.add_argument("--tls-certificate", type=Path, metavar="FILE", help="serve HTTPS with this certificate chain")
    how.add_argument("--tls-key", type=Path, metavar="FILE", help="the certificate's private key")
    how.add_argument("--admin-host", default=Options.admin_host, help="%(default)s unless given")
    how.add_argument("--admin-port", type=_port, default=Options.admin_port, help="%(default)s unless given")
    how.add_argument("--admin-token-file", type=Path, metavar="FILE", help="needed unless --admin-host is loopback")
    how.add_argument("--secret-file", type=Path, metavar="FILE", help="key for recorded prompts' hashes")
    how.add_argument("--workers", type=_processes, default=1, metavar="N", help="processes that share the port")
    how.add_argument(
        "--recorder-bytes", type=int, default=Options.recorder_bytes, help="memory for recorded requests; %(default)s"
    )
    how.add_argument(
        "--patience-s",
        type=float,
        default=Options.patience_s,
        help="seconds for answers under way, at the end; %(default)g",
    )
    how.add_argument("--log-level", choices=_LEVELS, default="info")


def serve(arguments: argparse.Namespace) -> int:
    """Run until told to stop, and return the exit code."""
    # The other commands read tables, for which no more than the base installation is needed.
    try:
        from dolphin_router.process.run import run
    except ModuleNotFoundError as error:
        problem, remedy = f"needs {error.name}, which is not installed", "pip install 'dolphin-routing[router]'"
        raise DocumentError(source="dolphin-router serve", field="", problem=problem, remedy=remedy) from error
    config, path = _config(arguments)
    options = _options(arguments)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("dolphin_router").setLevel(arguments.log_level.upper())
    try:
        return run(config, options, config_path=path)
    except OSError as error:
        # An address in use, a certificate that cannot be read.
        print(f"dolphin-router serve: cannot run: {error}", file=sys.stderr)
        return 1


def _config(arguments: argparse.Namespace) -> tuple[RouterConfig, Path | None]:
    flags = {role: arguments.__dict__[role] for role in ("prefill", "decode", "aggregated") if arguments.__dict__[role]}
    if arguments.config is not None:
        beside = [*flags, *(name for name in ("engine", "table", "explain") if getattr(arguments, name))]
        if beside:
            problem = f"stands beside {', '.join(f'--{name}' for name in beside)}"
            raise _refused("--config", problem, "say it in the file, or give flags alone")
        from dolphin_router.sources.config_file import load_config

        return load_config(arguments.config), arguments.config
    if arguments.engine is None:
        raise _refused("--engine", "is missing", f"give --config, or --engine with one of {', '.join(_ENGINES)}")
    if arguments.engine == "vllm-lmcache":
        raise _refused("--engine", "vllm-lmcache needs ports that no flag gives", "give --config; see docs/router.md")
    if not flags.get("decode") and not flags.get("aggregated"):
        raise _refused("--decode", "is missing", "give at least one decode worker, such as http://10.0.0.1:8000")
    document = {
        "engine": arguments.engine,
        "workers": {role: [{"url": url} for url in urls] for role, urls in flags.items()},
        "table": arguments.table,
        "explain": arguments.explain,
    }
    return read_document(RouterConfig, json.dumps(document), source="arguments"), None


def _options(arguments: argparse.Namespace) -> Options:
    if (arguments.tls_certificate is None) != (arguments.tls_key is None):
        raise _refused("--tls-certificate", "and --tls-key belong together", "give both or neither")
    token = _secret(arguments.admin_token_file, "--admin-token-file")
    if token is None and not _is_loopback(arguments.admin_host):
        raise _refused(
            "--admin-host",
            f"{arguments.admin_host} is not loopback",
            "give --admin-token-file, or --admin-host 127.0.0.1",
        )
    return Options(
        host=arguments.host,
        port=arguments.port,
        tls_certificate=arguments.tls_certificate,
        tls_key=arguments.tls_key,
        admin_host=arguments.admin_host,
        admin_port=arguments.admin_port,
        admin_token=token,
        secret=_secret(arguments.secret_file, "--secret-file") or os.urandom(32),
        processes=arguments.workers,
        recorder_bytes=arguments.recorder_bytes,
        patience_s=arguments.patience_s,
    )


def _secret(path: Path | None, argument: str) -> bytes | None:
    if path is None:
        return None
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise _refused(argument, f"{path} cannot be read: {error.strerror}", "check the path") from error
    if not 8 <= len(secret) <= 64:
        raise _refused(argument, f"{path} holds {len(secret)} bytes", "give 8 to 64")
    return secret


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refused(argument: str, problem: str, remedy: str) -> DocumentError:
    return DocumentError(source="arguments", field=argument, problem=problem, remedy=remedy)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:6]) <= 65_535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give a number from 0 to 65535")
    return int(text)


def _processes(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:4]) <= 256):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes from 1 to 256")
    return int(text)
