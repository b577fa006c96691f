"What all tests share"
import pytest, torch

@pytest.fixture(scope='module', autouse=True)
def one_thread():
    "Small models are faster on one thread, and the same everywhere"
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)
