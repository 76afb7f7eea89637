import sys
from perf.engine import append
from perf.report import *
def main():
    rows, aims = append.run(None, 5)
    print_table("append", rows, ["class","batch","data_bytes","calls_per_turn","records_per_s","us_per_call","floor_us_per_call","ratio","ratio_spread","cpu_ratio"])
    print_table("aims",[a.row() for a in aims])
