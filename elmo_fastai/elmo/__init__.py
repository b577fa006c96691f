"The module `Elmo`"
from .module import *
