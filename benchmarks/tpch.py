"""TPC-H with one customer as the unit of privacy: which of its queries are answered as they are published,
and how far answers at epsilon 1 are from those of plain DuckDB.

The tables are as they are published: a line item belongs to the customer of its order (`Reference`). Data
come from `tpchgen-cli` (in .venv-peers), at scale factor 0.1 unless TPCH_SCALE says otherwise; without it
there is nothing to measure. Errors are relative, of all numbers of an answer: the median and the largest.
They include what the limits on rows and groups leave out.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb

from discreet import Bounds, Categories, Dates, Public, Reference, Related, Text, Unit
from discreet.query import Query
from discreet.sampling import Entropy
from discreet.tables import connect

SCALE = os.environ.get("TPCH_SCALE", "0.1")
DAYS = Dates("1992-01-01", "1998-12-31")
PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
# "AIR REG" is in query 19, and in no table: data have "REG AIR".
MODES = ("AIR", "MAIL", "RAIL", "REG AIR", "AIR REG", "SHIP", "TRUCK", "FOB")
NATIONS = (
    *(
        "ALGERIA",
        "ARGENTINA",
        "BRAZIL",
        "CANADA",
        "EGYPT",
        "ETHIOPIA",
        "FRANCE",
        "GERMANY",
        "INDIA",
        "INDONESIA",
    ),
    *("IRAN", "IRAQ", "JAPAN", "JORDAN", "KENYA", "MOROCCO", "MOZAMBIQUE", "PERU", "CHINA", "ROMANIA"),
    *("SAUDI ARABIA", "VIETNAM", "RUSSIA", "UNITED KINGDOM", "UNITED STATES"),
)
LINEITEM = {
    "l_orderkey": Text(),
    "l_suppkey": Text(),
    "l_partkey": Text(),
    "l_quantity": Bounds(1, 50),
    "l_extendedprice": Bounds(0.0, 105_000.0),
    "l_discount": Bounds(0.0, 0.1),
    "l_tax": Bounds(0.0, 0.08),
    "l_returnflag": Categories(["A", "N", "R"]),
    "l_linestatus": Categories(["F", "O"]),
    "l_shipdate": DAYS,
    "l_commitdate": DAYS,
    "l_receiptdate": DAYS,
    "l_shipmode": Categories(MODES),
    "l_shipinstruct": Categories(["DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"]),
}
ORDERS = {
    "o_orderkey": Text(),
    "o_comment": Text(),
    "o_orderdate": DAYS,
    "o_orderstatus": Categories(["F", "O", "P"]),
    "o_orderpriority": Categories(PRIORITIES),
    "o_totalprice": Bounds(0.0, 600_000.0),
    "o_shippriority": Bounds(0, 1),
}
CUSTOMER = {
    "c_nationkey": Text(),
    "c_name": Text(),
    "c_phone": Text(),
    "c_acctbal": Bounds(-1000.0, 10_000.0),
    "c_mktsegment": Categories(["BUILDING", "AUTOMOBILE", "MACHINERY", "HOUSEHOLD", "FURNITURE"]),
}
PART = {
    "p_partkey": Text(),
    "p_type": Text(),
    "p_name": Text(),
    "p_brand": Text(),
    "p_container": Text(),
    "p_size": Bounds(1, 50),
}
PARTSUPP = {"ps_partkey": Text(), "ps_suppkey": Text(), "ps_supplycost": Bounds(0.0, 1000.0)}
PUBLIC = Public(
    schema=CUSTOMER,
    unit=Unit("c_custkey"),
    table="customer",
    tables=(
        Related(name="orders", schema=ORDERS, private=True, unit="o_custkey"),
        Related(
            name="lineitem",
            schema=LINEITEM,
            private=True,
            unit=Reference(of="orders", column="l_orderkey", key="o_orderkey"),
        ),
        Related(name="part", schema=PART, key=("p_partkey",)),
        Related(
            name="supplier",
            schema={"s_suppkey": Text(), "s_nationkey": Text(), "s_name": Text()},
            key=("s_suppkey",),
        ),
        Related(name="partsupp", schema=PARTSUPP, key=("ps_partkey", "ps_suppkey")),
        Related(
            name="nation",
            schema={"n_nationkey": Text(), "n_name": Categories(NATIONS), "n_regionkey": Text()},
            key=("n_nationkey",),
        ),
        Related(name="region", schema={"r_regionkey": Text(), "r_name": Text()}, key=("r_regionkey",)),
    ),
)

# The queries that are answered, as they are published, by number.
PUBLISHED = {
    1: """
        select l_returnflag, l_linestatus, sum(l_quantity) as sum_qty, sum(l_extendedprice) as
        sum_base_price,
        sum(l_extendedprice * (1 - l_discount)) as sum_disc_price, sum(l_extendedprice * (1 - l_discount) *
        (1 + l_tax)) as sum_charge,
        avg(l_quantity) as avg_qty, avg(l_extendedprice) as avg_price, avg(l_discount) as avg_disc, count(*)
        as count_order
        from lineitem where l_shipdate <= date '1998-12-01' - interval '90' day
        group by l_returnflag, l_linestatus order by l_returnflag, l_linestatus
        """,
    4: """
        select o_orderpriority, count(*) as order_count from orders where o_orderdate >= date '1993-07-01'
        and o_orderdate < date '1993-07-01' + interval '3' month
        and exists (select * from lineitem where l_orderkey = o_orderkey and l_commitdate < l_receiptdate)
        group by o_orderpriority order by o_orderpriority
        """,
    5: """
        select n_name, sum(l_extendedprice * (1 - l_discount)) as revenue from customer, orders, lineitem,
        supplier, nation, region
        where c_custkey = o_custkey and l_orderkey = o_orderkey and l_suppkey = s_suppkey and c_nationkey =
        s_nationkey and s_nationkey = n_nationkey
        and n_regionkey = r_regionkey and r_name = 'ASIA' and o_orderdate >= date '1994-01-01' and
        o_orderdate < date '1994-01-01' + interval '1' year
        group by n_name order by revenue desc
        """,
    6: """
        select sum(l_extendedprice * l_discount) as revenue from lineitem where l_shipdate >= date
        '1994-01-01' and l_shipdate < date '1994-01-01' + interval '1' year
        and l_discount between 0.06 - 0.01 and 0.06 + 0.01 and l_quantity < 24
        """,
    7: """
        select supp_nation, cust_nation, l_year, sum(volume) as revenue from (select n1.n_name as
        supp_nation, n2.n_name as cust_nation,
        extract(year from l_shipdate) as l_year, l_extendedprice * (1 - l_discount) as volume from supplier,
        lineitem, orders, customer, nation n1, nation n2
        where s_suppkey = l_suppkey and o_orderkey = l_orderkey and c_custkey = o_custkey and s_nationkey =
        n1.n_nationkey and c_nationkey = n2.n_nationkey
        and ((n1.n_name = 'FRANCE' and n2.n_name = 'GERMANY') or (n1.n_name = 'GERMANY' and n2.n_name =
        'FRANCE'))
        and l_shipdate between date '1995-01-01' and date '1996-12-31') as shipping group by supp_nation,
        cust_nation, l_year order by supp_nation, cust_nation, l_year
        """,
    8: """
        select o_year, sum(case when nation = 'BRAZIL' then volume else 0 end) / sum(volume) as mkt_share
        from (select extract(year from o_orderdate) as o_year,
        l_extendedprice * (1 - l_discount) as volume, n2.n_name as nation from part, supplier, lineitem,
        orders, customer, nation n1, nation n2, region
        where p_partkey = l_partkey and s_suppkey = l_suppkey and l_orderkey = o_orderkey and o_custkey =
        c_custkey and c_nationkey = n1.n_nationkey
        and n1.n_regionkey = r_regionkey and r_name = 'AMERICA' and s_nationkey = n2.n_nationkey and
        o_orderdate between date '1995-01-01' and date '1996-12-31'
        and p_type = 'ECONOMY ANODIZED STEEL') as all_nations group by o_year order by o_year
        """,
    9: """
        select nation, o_year, sum(amount) as sum_profit from (select n_name as nation, extract(year from
        o_orderdate) as o_year,
        l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity as amount from part, supplier,
        lineitem, partsupp, orders, nation
        where s_suppkey = l_suppkey and ps_suppkey = l_suppkey and ps_partkey = l_partkey and p_partkey =
        l_partkey and o_orderkey = l_orderkey
        and s_nationkey = n_nationkey and p_name like '%green%') as profit group by nation, o_year order by
        nation, o_year desc
        """,
    12: """
        select l_shipmode, sum(case when o_orderpriority = '1-URGENT' or o_orderpriority = '2-HIGH' then 1
        else 0 end) as high_line_count,
        sum(case when o_orderpriority <> '1-URGENT' and o_orderpriority <> '2-HIGH' then 1 else 0 end) as
        low_line_count from orders, lineitem
        where o_orderkey = l_orderkey and l_shipmode in ('MAIL', 'SHIP') and l_commitdate < l_receiptdate
        and l_shipdate < l_commitdate
        and l_receiptdate >= date '1994-01-01' and l_receiptdate < date '1994-01-01' + interval '1' year
        group by l_shipmode order by l_shipmode
        """,
    13: """
        select c_count, count(*) as custdist from (select c_custkey, count(o_orderkey) from customer left
        outer join orders on c_custkey = o_custkey
        and o_comment not like '%special%requests%' group by c_custkey) as c_orders (c_custkey, c_count)
        group by c_count order by custdist desc, c_count desc
        """,
    14: """
        select 100.00 * sum(case when p_type like 'PROMO%' then l_extendedprice * (1 - l_discount) else 0
        end) / sum(l_extendedprice * (1 - l_discount)) as promo_revenue
        from lineitem, part where l_partkey = p_partkey and l_shipdate >= date '1995-09-01' and l_shipdate <
        date '1995-09-01' + interval '1' month
        """,
    19: """
        select sum(l_extendedprice * (1 - l_discount)) as revenue from lineitem, part where (p_partkey =
        l_partkey and p_brand = 'Brand#12'
        and p_container in ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG') and l_quantity >= 1 and l_quantity <=
        1 + 10 and p_size between 1 and 5
        and l_shipmode in ('AIR', 'AIR REG') and l_shipinstruct = 'DELIVER IN PERSON') or (p_partkey =
        l_partkey and p_brand = 'Brand#23'
        and p_container in ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK') and l_quantity >= 10 and l_quantity
        <= 10 + 10 and p_size between 1 and 10
        and l_shipmode in ('AIR', 'AIR REG') and l_shipinstruct = 'DELIVER IN PERSON') or (p_partkey =
        l_partkey and p_brand = 'Brand#34'
        and p_container in ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG') and l_quantity >= 20 and l_quantity <=
        20 + 10 and p_size between 1 and 15
        and l_shipmode in ('AIR', 'AIR REG') and l_shipinstruct = 'DELIVER IN PERSON')
        """,
    21: """
        select s_name, count(*) as numwait from supplier, lineitem l1, orders, nation where s_suppkey =
        l1.l_suppkey and o_orderkey = l1.l_orderkey and o_orderstatus = 'F'
        and l1.l_receiptdate > l1.l_commitdate and exists (select * from lineitem l2 where l2.l_orderkey =
        l1.l_orderkey and l2.l_suppkey <> l1.l_suppkey)
        and not exists (select * from lineitem l3 where l3.l_orderkey = l1.l_orderkey and l3.l_suppkey <>
        l1.l_suppkey and l3.l_receiptdate > l3.l_commitdate)
        and s_nationkey = n_nationkey and n_name = 'SAUDI ARABIA' group by s_name order by numwait desc,
        s_name limit 100
        """,
}
# How many rows of a customer count in a group, and in how many groups a customer counts.
LIMITS = {
    1: (60, 4),
    4: (2, 2),
    5: (4, 1),
    6: (3, 1),
    7: (4, 2),
    8: (2, 2),
    9: (2, 10),
    12: (2, 2),
    13: (1, 1),
    14: (3, 1),
    19: (1, 1),
    21: (1, 1),
}


def generated(folder: Path) -> bool:
    """Make the tables of the benchmark once; return whether there is a generator."""
    program = Path(sys.executable).with_name("tpchgen-cli")
    if not (folder / "lineitem.parquet").exists():
        if not program.exists():
            return False
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([program, "parquet", "-s", SCALE, "--output-dir", folder], check=True)
    return True


def by_key(rows: Any, keys: list[int]) -> dict[Any, list[Any]]:
    """The numbers of each group, by its keys."""
    return {tuple(str(row[i]) for i in keys): [v for i, v in enumerate(row) if i not in keys] for row in rows}


def main() -> int:
    folder = Path(__file__).parent.parent / "out" / f"tpch{SCALE}"
    if not generated(folder):
        print("tpchgen-cli is not installed (make peers): nothing was measured")
        return 0
    tables = {t.name: folder / f"{t.name}.parquet" for t in PUBLIC.tables}
    engine = connect(folder / "customer.parquet", PUBLIC, related=tables, threads=1)
    con = duckdb.connect(config={"threads": 1})
    for name in ("customer", *tables):
        con.execute(f"CREATE VIEW {name} AS FROM '{folder / name}.parquet'")
    print(f"TPC-H, scale factor {SCALE}, unit customer, epsilon 1, delta 1e-6, one answer each")
    print("query   groups  shown  median error  largest error  CPU-s  plain CPU-s")
    for number, sql in PUBLISHED.items():
        rows, groups = LIMITS[number]
        query = Query(sql=sql, public=PUBLIC, epsilon=1, delta=1e-6, rows=rows, groups=groups)
        keys = [i for i in range(len(query.columns)) if not query.is_number(i)]
        start = time.process_time()
        mine = by_key(query(engine, entropy=Entropy()).value.rows, keys)
        took, start = time.process_time() - start, time.process_time()
        truth = by_key(con.execute(sql).fetchall(), keys)
        plain = time.process_time() - start
        errors = [
            abs(float(a) - float(b)) / abs(float(b))
            for key, numbers in truth.items()
            for a, b in zip(mine.get(key, ()), numbers, strict=False)
            if a is not None and b
        ]
        median, largest = (statistics.median(errors), max(errors)) if errors else (float("nan"),) * 2
        shown = len(truth.keys() & mine.keys())
        print(
            f"Q{number:<6} {len(truth):6} {shown:6} {median:13.2%} {largest:14.2%} {took:6.1f} {plain:12.1f}",
            flush=True,
        )
    return 0
