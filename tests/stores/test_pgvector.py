"""What is particular to PostgreSQL with pgvector."""

from __future__ import annotations

import signal
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
from psycopg import sql

from service.errors import (
    AssayError,
    DimensionMismatch,
    InvalidRequest,
    MalformedPayload,
    SourceDenied,
    SourceUnreachable,
)
from tests.stores import servers
from tests.stores.loading import SECRET, Pgvector, Table, opened, read

QUOTED = "do\"cs'; DROP TABLE x; --"


@pytest.fixture(scope="module")
def store() -> Iterator[Pgvector]:
    with servers.postgres(SECRET) as server:
        yield Pgvector(server.port)


@pytest.fixture(scope="module")
def vectors(rows: Any) -> Any:
    return list(rows("debian_pairs/minilm_doc")[:300])


def execute(store: Pgvector, *statements: str) -> None:
    with store.client() as client:
        for statement in statements:
            client.execute(statement.encode())


def test_names_with_quotes_are_names(store: Pgvector, vectors: Any) -> None:
    column = 'si"ze; --'
    ids = store.load(QUOTED, Table(vectors, {column: list(range(300))}))
    found = read(
        store.connection,
        {
            **store.reference(QUOTED),
            "columns": [column],
            "where": [{"column": column, "op": "<", "value": 250}],
        },
    )
    assert found.ids == ids[:250]
    assert found.columns[column] == list(range(250))
    assert found.vectors.tobytes() == np.stack(vectors[:250]).tobytes()


def test_half_precision_is_read_as_it_is_stored_and_recorded(store: Pgvector, vectors: Any) -> None:
    store.load("halves", Table(vectors), kind="halfvec")
    found = read(store.connection, store.reference("halves"))
    assert found.vectors.dtype == np.float16
    assert found.opened.about.stored_as == "float16"
    written = np.stack(vectors)
    assert found.vectors.tobytes() == written.astype("f2").tobytes()
    error = np.abs(found.vectors.astype("f8") - written).max()
    assert 0 < error <= np.abs(written).max() * 2.0**-11


@pytest.mark.parametrize(
    ("kind", "value"), [("sparsevec", "{1:0.5}/384"), ("bit", "1"), ("real[]", "{1}")]
)
def test_other_types_are_refused_by_name(store: Pgvector, kind: str, value: str) -> None:
    name = f"other_{kind[:4]}"
    execute(
        store,
        f"CREATE TABLE {name} (id text, embedding {kind})",
        f"INSERT INTO {name} VALUES ('a', '{value}')",
    )
    with pytest.raises(InvalidRequest) as caught:
        read(store.connection, store.reference(name))
    assert kind.removesuffix("[]")[:4] in caught.value.detail or "_float4" in caught.value.detail


def test_vectors_of_several_dimensions_are_named(store: Pgvector) -> None:
    execute(
        store,
        "CREATE TABLE mixed (id int PRIMARY KEY, embedding vector)",
        "INSERT INTO mixed VALUES (1, '[1,2]'), (2, '[1,2]'), (3, '[1,2,3]'), (4, null)",
    )
    for page_rows in (1, 4096):
        with pytest.raises(DimensionMismatch) as caught:
            read(store.connection, {**store.reference("mixed"), "page_rows": page_rows})
        assert caught.value.faults[0].rows == ["3"]


def test_ids_that_repeat_are_given_twice_for_the_import_to_refuse(store: Pgvector) -> None:
    execute(
        store,
        "CREATE TABLE twice (id int, embedding vector(2))",
        "INSERT INTO twice VALUES (10, '[1,2]'), (9, '[3,4]'), (9, '[5,6]')",
    )
    assert read(store.connection, store.reference("twice")).ids == ["9", "9", "10"]


def test_rows_without_an_id_are_counted(store: Pgvector) -> None:
    execute(
        store,
        "CREATE TABLE nameless (id int, embedding vector(2))",
        "INSERT INTO nameless VALUES (1, '[1,2]'), (null, '[3,4]')",
    )
    with pytest.raises(MalformedPayload, match="1 rows of the source have no id"):
        read(store.connection, store.reference("nameless"))


def test_labels_keep_the_type_json_has_for_them(store: Pgvector) -> None:
    execute(
        store,
        "CREATE TYPE mood AS ENUM ('calm')",
        "CREATE DOMAIN small AS int2",
        "CREATE TABLE typed (id uuid, embedding vector(1), b bool, f real, n numeric, i small, "
        "t timestamptz, m mood, j jsonb)",
        "INSERT INTO typed VALUES ('00000000-0000-0000-0000-000000000001', '[1]', true, 0.5, 2.25, "
        "7, '2026-01-02 03:04:05Z', 'calm', '{\"a\": 1}'), "
        "('00000000-0000-0000-0000-000000000002', '[1]', null, null, null, null, null, null, null)",
    )
    columns = list("bfnitmj")
    found = read(store.connection, {**store.reference("typed"), "columns": columns})
    assert [found.columns[c][0] for c in "bfnimj"] == [True, 0.5, 2.25, 7, "calm", '{"a": 1}']
    assert [type(found.columns[c][0]) for c in "bfni"] == [bool, float, float, int]
    assert found.columns["t"][0].startswith("2026-01-02 03:04:05")
    assert {found.columns[c][1] for c in columns} == {None}


def test_nan_is_a_missing_label_and_infinity_none(store: Pgvector) -> None:
    execute(
        store,
        "CREATE TABLE infinite (id int, embedding vector(1), f real, n numeric)",
        "INSERT INTO infinite VALUES (1, '[1]', 'NaN', 'NaN'), (2, '[2]', 1, 2)",
    )
    found = read(store.connection, {**store.reference("infinite"), "columns": ["f", "n"]})
    assert found.columns == {"f": [None, 1.0], "n": [None, 2.0]}
    execute(store, "INSERT INTO infinite VALUES (3, '[1]', '-Infinity', 0)")
    with pytest.raises(InvalidRequest, match="`f` holds a number that is not finite"):
        read(store.connection, {**store.reference("infinite"), "columns": ["f"]})


def test_views_and_other_schemas_are_read(store: Pgvector) -> None:
    execute(
        store,
        'CREATE SCHEMA "odd""one"',
        'CREATE TABLE "odd""one".t (id int, embedding vector(1))',
        "INSERT INTO \"odd\"\"one\".t VALUES (2, '[2]'), (1, '[1]')",
        'CREATE VIEW "odd""one".v AS SELECT * FROM "odd""one".t WHERE id > 1',
    )
    asked = {"namespace": 'odd"one'}
    assert read(store.connection, {**store.reference("t"), **asked}).ids == ["1", "2"]
    assert read(store.connection, {**store.reference("v"), **asked}).ids == ["2"]


def test_what_is_written_meanwhile_is_not_read(store: Pgvector, vectors: Any) -> None:
    ids = store.load("moving", Table(vectors))
    with opened(store.connection, {**store.reference("moving"), "page_rows": 100}) as source:
        assert source.about.version.startswith("one snapshot, PostgreSQL 18")
        first = next(source.pages)
        execute(
            store,
            "DELETE FROM moving WHERE id > '000150'",
            "INSERT INTO moving SELECT 'zz', embedding FROM moving LIMIT 1",
        )
        rest = [one for page in source.pages for one in page.ids or ()]
        assert [*(first.ids or ()), *rest] == ids
        assert source.count == source.recount() == 300


def test_the_transaction_is_read_only(store: Pgvector, vectors: Any) -> None:
    store.load("kept", Table(vectors[:2]))
    execute(
        store,
        "CREATE FUNCTION spoil() RETURNS int LANGUAGE plpgsql AS "
        "'BEGIN DELETE FROM kept; RETURN 1; END'",
        "CREATE VIEW spoiling AS SELECT id, embedding, spoil() AS n FROM kept",
    )
    with pytest.raises((SourceUnreachable, InvalidRequest)):
        read(store.connection, {**store.reference("spoiling"), "columns": ["n"]})
    assert len(read(store.connection, store.reference("kept")).ids) == 2


def test_a_user_without_rights_is_denied(store: Pgvector, vectors: Any) -> None:
    store.load("closed", Table(vectors[:2]))
    with store.client() as client:
        client.execute(sql.SQL("CREATE USER guest PASSWORD {}").format(sql.Literal(SECRET)))
    guest = replace(store.connection, user="guest")
    with pytest.raises(SourceDenied):
        read(guest, store.reference("closed"))


def refused(connection: Any, reference: dict[str, Any]) -> str:
    with pytest.raises(AssayError) as caught:
        read(connection, reference)
    return f"{caught.value.code}: {caught.value.detail}"


def test_a_wrong_password_or_user_is_said_to_be_one(store: Pgvector) -> None:
    """Not that it may not read a table, which nobody has asked for by then."""
    for wrong in ({"password": "wr0ng"}, {"user": "nobody"}):
        told = refused(replace(store.connection, **wrong), store.reference("docs"))
        assert (
            told
            == "source-denied: PostgreSQL refuses the user or the password of connection `prod`."
        )


def test_a_database_that_is_not_there_is_said_to_be_one(store: Pgvector) -> None:
    url = store.connection.url.replace("/postgres", "/nothing")
    told = refused(replace(store.connection, url=url), store.reference("docs"))
    assert (
        told
        == "source-unreachable: There is no database at connection `prod` as its address names."
    )


def test_an_id_that_has_no_order_is_named(store: Pgvector) -> None:
    execute(
        store,
        "CREATE TABLE unordered (id json, embedding vector(1), n int)",
        "INSERT INTO unordered VALUES ('1', '[1]', 1)",
    )
    for where in ([], [{"column": "n", "op": "=", "value": 1}]):
        told = refused(store.connection, {**store.reference("unordered"), "where": where})
        assert told.startswith("invalid-request: Column `id` cannot be put in order")


def test_what_a_view_cannot_compute_is_said_of_the_table(store: Pgvector) -> None:
    """Whether or not there is a `where`, which is not to blame."""
    execute(
        store,
        "CREATE TABLE divided (id int, embedding vector(1), n int)",
        "INSERT INTO divided VALUES (1, '[1]', 0), (2, '[2]', 1)",
        "CREATE VIEW dividing AS SELECT id, embedding, n, 1 / n AS share FROM divided",
    )
    where = [{"column": "share", "op": ">", "value": 0}]
    for asked in ({"columns": ["share"]}, {"where": where}):
        told = refused(store.connection, {**store.reference("dividing"), **asked})
        assert told.startswith("invalid-request: PostgreSQL cannot compute a row of `dividing`")
        assert "22012" in told
    sound = [{"column": "n", "op": ">", "value": 0}]
    found = read(store.connection, {**store.reference("divided"), "where": sound})
    assert found.ids == ["2"]


@pytest.mark.parametrize(
    ("column", "value"), [("n", "x"), ("n", True), ("day", "no day"), ("mood", "sad"), ("j", "1")]
)
def test_a_value_that_does_not_fit_is_said_of_where(
    column: str, value: Any, store: Pgvector
) -> None:
    execute(
        store,
        "DROP TABLE IF EXISTS fitting",
        "DROP TYPE IF EXISTS fit",
        "CREATE TYPE fit AS ENUM ('calm')",
        "CREATE TABLE fitting (id int, embedding vector(1), n int, day date, mood fit, j json)",
    )
    where = [{"column": column, "op": "=", "value": value}]
    told = refused(store.connection, {**store.reference("fitting"), "where": where})
    assert told.startswith("invalid-request: PostgreSQL does not accept `where`")


@pytest.mark.parametrize("place", ["table", "namespace", "id", "vector"])
def test_a_name_with_the_character_zero_is_refused_as_that(place: str, store: Pgvector) -> None:
    told = refused(store.connection, {**store.reference("docs"), place: "a\0b"})
    assert told.startswith("invalid-request: A name or a value holds the character zero")


def test_options_of_the_connection_reach_the_driver(store: Pgvector, vectors: Any) -> None:
    store.load("plain", Table(vectors[:2]))
    secure = replace(store.connection, options={"sslmode": "require"})
    with pytest.raises(SourceUnreachable):
        read(secure, store.reference("plain"))
    asked = replace(store.connection, url=f"{store.connection.url}?sslmode=require")
    with pytest.raises(SourceUnreachable):
        read(asked, store.reference("plain"))
    wrong = replace(store.connection, options={"no_such": SECRET})
    with pytest.raises(SourceUnreachable) as caught:
        read(wrong, store.reference("plain"))
    assert SECRET not in repr(caught.value)


@pytest.mark.parametrize("name", ["localhost", "elsewhere.test"])
def test_tls_is_verified_against_the_name_though_the_address_was_looked_up_before(
    name: str, vectors: Any, tmp_path: Path
) -> None:
    """`verify-full` needs a certificate for the name by an authority the connection names."""
    authority, other = trustme.CA(), trustme.CA()
    for file, one in (("ca.pem", authority), ("other.pem", other)):
        one.cert_pem.write_to_path(str(tmp_path / file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    with servers.postgres(SECRET) as server, servers.tls_before(server.port, context) as port:
        store = Pgvector(server.port)
        store.load("docs", Table(vectors[:2]))
        address = f"postgresql://localhost:{port}/postgres"

        def reads(sslmode: str, ca: str) -> bool:
            options = {"sslmode": sslmode, "sslrootcert": str(tmp_path / ca)}
            secure = replace(store.connection, url=address, options=options)
            try:
                found = read(secure, store.reference("docs"))
            except SourceUnreachable:
                return False
            return len(found.ids) == 2

        assert reads("verify-full", "ca.pem") is (name == "localhost")
        assert reads("verify-ca", "ca.pem") is True
        assert reads("verify-full", "other.pem") is False
        assert reads("verify-ca", "other.pem") is False


def test_a_server_killed_while_rows_flow_ends_in_a_problem(vectors: Any) -> None:
    with servers.postgres(SECRET) as server:
        store = Pgvector(server.port)
        store.load("docs", Table(vectors * 100))
        with opened(store.connection, {**store.reference("docs"), "page_rows": 100}) as source:
            assert source.count == 30_000
            assert len(next(source.pages)) == 100
            server.kill(signal.SIGQUIT)
            with pytest.raises(SourceUnreachable):
                list(source.pages)


def test_a_reader_that_stops_early_leaves_no_transaction_behind(
    store: Pgvector, vectors: Any
) -> None:
    store.load("long", Table(vectors * 40))
    with opened(store.connection, {**store.reference("long"), "page_rows": 10}) as source:
        next(source.pages)
    until = time.monotonic() + 10
    while busy(store) and time.monotonic() < until:
        time.sleep(0.05)
    assert busy(store) == 0


def test_what_its_reader_meets_is_not_taken_for_the_store(store: Pgvector, vectors: Any) -> None:
    """A full disk on this side is no broken connection: the import is to be tried again."""
    store.load("read", Table(vectors[:20]))
    reading = opened(store.connection, store.reference("read"))
    with pytest.raises(OSError, match="no space"), reading:
        raise OSError("no space")


def busy(store: Pgvector) -> int:
    """Transactions of others."""
    with store.client() as client:
        row = client.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE state <> 'idle' "
            "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_pages_are_bounded_in_bytes(
    store: Pgvector, vectors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.sources.pgvector.PAGE_BYTES", 10 * 384 * 4)
    store.load("wide", Table(vectors[:25]), kind="vector(384)")
    assert read(store.connection, store.reference("wide")).pages == [10, 10, 5]


def test_ids_and_labels_are_written_alike_whatever_the_role_has_set(store: Pgvector) -> None:
    execute(
        store,
        "CREATE TABLE written (id float8, embedding vector(1), at timestamptz, day date, "
        "span interval, raw bytea, f float8)",
        "INSERT INTO written VALUES (0.1::float8 + 0.2::float8, '[1]', '2024-03-01 01:00+02', "
        "'2024-03-01', '1 day 2 hours', '\\x00ff', 0.1::float8 + 0.2::float8)",
        "INSERT INTO written VALUES (0.3, '[2]')",
    )
    reference = {**store.reference("written"), "columns": ["at", "day", "span", "raw", "f"]}
    plain = read(store.connection, reference)
    settings = ["DateStyle = German", "extra_float_digits = 0", "bytea_output = escape"]
    settings += ["IntervalStyle = iso_8601", "TimeZone = 'Asia/Tokyo'"]
    try:
        execute(store, *(f"ALTER ROLE owner SET {one}" for one in settings))
        found = read(store.connection, reference)
    finally:
        execute(store, "ALTER ROLE owner RESET ALL")
    assert found.ids == plain.ids == ["0.3", "0.30000000000000004"]
    assert found.columns == plain.columns
    assert {name: values[1] for name, values in found.columns.items()} == {
        "at": "2024-02-29 23:00:00+00", "day": "2024-03-01", "span": "1 day 02:00:00",
        "raw": "\\x00ff", "f": 0.30000000000000004,
    }  # fmt: skip


def test_decimal_labels_that_no_float_holds_stay_apart(store: Pgvector) -> None:
    values = [
        "9007199254740993",
        "9007199254740992",
        "0.1",
        "0.10000000000000000001",
        "2.50",
        "NaN",
        "5",
    ]
    rows = ", ".join(f"({at}, '[1]', '{value}')" for at, value in enumerate(values))
    execute(
        store,
        "CREATE TABLE decimals (id int, embedding vector(1), n numeric)",
        f"INSERT INTO decimals VALUES {rows}",
    )
    found = read(store.connection, {**store.reference("decimals"), "columns": ["n"]})
    assert found.columns["n"] == [
        "9007199254740993", 9007199254740992.0, 0.1, "0.10000000000000000001", 2.5, None, 5.0,
    ]  # fmt: skip


def test_a_query_that_takes_too_long_names_the_setting(store: Pgvector) -> None:
    execute(
        store,
        "CREATE VIEW slow AS SELECT 1 AS id, '[1]'::vector AS embedding FROM pg_sleep(3)",
        "ALTER ROLE owner SET statement_timeout = '300ms'",
    )
    try:
        with pytest.raises(SourceUnreachable, match="statement_timeout"):
            read(store.connection, store.reference("slow"))
    finally:
        with store.client() as client:
            client.execute("SET statement_timeout = 0")
            client.execute("ALTER ROLE owner RESET statement_timeout")
