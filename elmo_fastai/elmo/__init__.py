"The module `Elmo` with all its methods: mixing, saving, AI2's files, embedding"
from .module import *
from .folder import *
from .ai2 import *
from .embed import *
from .onnx import *
