from .function import Benchmark as Benchmark
from .function import bench as bench
