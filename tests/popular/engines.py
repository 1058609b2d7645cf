"""Runs deploy/popular.sql with an engine, as it is.

usage: engines.py duckdb|spark LOG.jsonl OUT
"""

import sys
from pathlib import Path

STATEMENT = (Path(__file__).resolve().parents[2] / "deploy/popular.sql").read_text(encoding="utf-8")


def duckdb(log, out):
    import duckdb

    engine = duckdb.connect(config={"threads": 2, "memory_limit": "2GB"})
    columns = "{query: 'VARCHAR', uses: 'BIGINT'}"
    rows = f"read_json('{log}', format='newline_delimited', columns={columns})"
    engine.execute(f"CREATE VIEW query_log AS SELECT * FROM {rows}")
    found = engine.execute(STATEMENT)
    with Path(out).open("w", encoding="utf-8", newline="") as file:
        while some := found.fetchmany(10_000):
            file.writelines(f"{query}\t{total}\n" for query, total in some)


def spark(log, out):
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import concat_ws

    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4", "spark.log.level": "ERROR"}
    settings |= {"spark.driver.memory": "3g", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    engine = builder.getOrCreate()
    engine.read.schema("query string, uses bigint").json(log).createOrReplaceTempView("query_log")
    # As a job would write it: one file, in the order of the statement.
    lines = engine.sql(STATEMENT).select(concat_ws("\t", "query", "total"))
    lines.coalesce(1).write.mode("overwrite").text(f"{out}.parts")
    (part,) = Path(f"{out}.parts").glob("part-*.txt")
    part.rename(out)


{"duckdb": duckdb, "spark": spark}[sys.argv[1]](*sys.argv[2:])
