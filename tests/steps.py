"For tests of what happens in the middle of a training"
import signal
from fastai.basics import Callback

class At(Callback):
    "Do something after a certain step"
    order = 10

    def __init__(self, step, do, event='after_step'):
        self.step, self.do = step, do
        setattr(self, event, self._act)

    def before_fit(self): self.n = 0
    def _act(self):
        if not self.training: return
        self.n += 1
        if self.n == self.step: self.do(self)

def finite(model): return all(o.isfinite().all() for o in model.state_dict().values())

def press(cb): signal.raise_signal(signal.SIGINT)
