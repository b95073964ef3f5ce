"""Interactive views: the same in a notebook, in one HTML file and in the studio."""

from regard.views import page as page
from regard.views._payload import Payload as Payload
from regard.views._payload import Scaled as Scaled
from regard.views._runs import attention_view as attention_view
from regard.views._runs import run_views as run_views
from regard.views._runs import training_view as training_view
from regard.views._sheets import maps_for_page as maps_for_page
from regard.views._shipped import shipped_run as shipped_run
from regard.views._show import Show as Show
from regard.views._show import show as show
from regard.views._story import story as story
from regard.views._words import tokens_of as tokens_of
