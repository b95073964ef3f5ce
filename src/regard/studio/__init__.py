"""The studio: a local web page that shows runs and the attention of their networks (``regard studio``).

It has a typed HTTP API (``/api/openapi.json``) and one page that uses it. By default other machines cannot reach the
server. It reads nothing outside the folder that you open, and unpickles nothing.
"""

try:
    import fastapi
    import PIL
    import python_multipart
    import uvicorn
except ImportError as missing:
    raise ImportError(f"the studio needs {missing.name}: pip install 'regard[studio]'") from missing

from regard.studio._app import create_app as create_app
from regard.studio._own_model import OwnModel as OwnModel
from regard.studio._own_model import open_model as open_model
from regard.studio._run_folders import EXAMPLE as EXAMPLE
from regard.studio._serve import serve as serve
