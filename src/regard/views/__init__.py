"""What a person looks at: the same pictures in a notebook, in one HTML file and on the studio's page."""

from regard.views._file import bundle as bundle
from regard.views._file import document as document
from regard.views._file import head as head
from regard.views._file import place as place
from regard.views._file import scripts as scripts
from regard.views._payload import Payload as Payload
from regard.views._payload import Scaled as Scaled
from regard.views._runs import attention_view as attention_view
from regard.views._runs import run_views as run_views
from regard.views._show import Show as Show
from regard.views._show import claim_evidence as claim_evidence
from regard.views._show import show as show
