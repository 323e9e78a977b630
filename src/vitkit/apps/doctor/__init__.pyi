from .function import Diagnosis as Diagnosis
from .function import doctor as doctor
