"""Interactive views: the same in a notebook, in one HTML file and in the studio."""

from regard.views import page as page
from regard.views._image_maps import image_payload as image_payload
from regard.views._payload import Payload as Payload
from regard.views._payload import Scaled as Scaled
from regard.views._runs import run_payloads as run_payloads
from regard.views._show import Show as Show
from regard.views._show import show as show
