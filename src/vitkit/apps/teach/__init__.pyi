from .function import Lesson as Lesson
from .function import teach as teach
