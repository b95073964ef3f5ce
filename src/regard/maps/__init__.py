"""Capture: the attention maps of any model, each compared with what the model computed.

How a call of attention becomes a map, and where to find each step. A package names its own files in its docstring.

1. Capture. ``_capture.py`` checks the options of ``capture`` and listens while the model runs. ``_keeping.py`` is the
   part of it that builds what is kept, and ``_revisions.py`` the part that corrects it later (step 7). ``_selection.py``
   reads which rows and heads to keep, and ``_storage.py`` keeps them, in memory up to a budget or in files.
2. Interception. The interceptor in ``_interception.py`` (its parts are in ``_interceptor_parts.py``) is a torch function
   mode: it sees every torch function that the model calls, and tells a ``RecordListener`` (``_listener.py``), which a
   capture is. ``_monkey_patches.py`` redirects functions that no mode sees, such as those of ``flash_attn``.
3. Name. ``_module_names.py`` reads from the call stack (``_call_stack.py``) which module attends.
4. Source. Each file in ``sources/`` knows one way to compute attention. It turns the call into a record, or says why it
   cannot. The files in ``tokens/`` decide which axes are samples, heads and queries, and where the tokens lie.
5. Record. ``_record.py`` has the ``AttentionRecord``: how to compute the weights, and how they compare with what the
   model computed (``_check.py``).
6. Building. The files in ``weights/`` compute the whole map, on a CPU or by Triton on a GPU, or reduce a long map to an
   ``Overview`` (``_overview.py``) without ever forming it.
7. Afterwards. The files in ``outputs/`` follow the output: if the model rescales, subtracts or joins outputs, their maps
   change, too.
8. Container. ``_container.py``: a ``Map`` has the records of one module, and ``Maps`` all maps by name. ``_files.py``
   saves them, ``_generation.py`` joins the calls of ``generate``.

Two more things happen on the way. In later passes the files in ``repeats/`` replace the slow function mode by a watch of few
operators (``_operator_watch.py``), and repeated calls skip steps 3 to 5; their checks stay on a GPU until a map is read
(``_unread_checks.py``). And modules that look like attention but gave no map are reported (``_silent_modules.py``).
"""

from regard.maps._capture import Capture as Capture
from regard.maps._capture import capture as capture
from regard.maps._container import Map as Map
from regard.maps._container import Maps as Maps
from regard.maps._container import check_maps as check_maps
from regard.maps._container import check_over_tokens as check_over_tokens
from regard.maps._container import check_whole as check_whole
from regard.maps._contributions import ValueNorms as ValueNorms
from regard.maps._interception import Interceptor as Interceptor
from regard.maps._interception_block import intercept as intercept
from regard.maps._listener import RecordListener as RecordListener
from regard.maps._module_names import ModuleNames as ModuleNames
from regard.maps._overview import KeyStatistics as KeyStatistics
from regard.maps._overview import Overview as Overview
from regard.maps._overview import QueryStatistics as QueryStatistics
from regard.maps._record import AttentionRecord as AttentionRecord
from regard.maps._record import Check as Check
from regard.maps._record import Computation as Computation
from regard.maps._record import Missed as Missed
from regard.maps._record import WeightsOf as WeightsOf
from regard.maps._selection import Numbers as Numbers
from regard.maps._selection import Rows as Rows
from regard.maps._selection import check_patterns as check_patterns
from regard.maps._selection import checked_selection as checked_selection
from regard.maps._selection import matches as matches
from regard.maps._selection import may_match as may_match
from regard.maps._selection import whole_number as whole_number
from regard.maps._stacks import check_one_stack as check_one_stack
from regard.maps._stacks import heads_together as heads_together
from regard.maps._stacks import is_cross_attention as is_cross_attention
from regard.maps._stacks import stacks_in as stacks_in
from regard.maps._visible_keys import visible_keys as visible_keys
from regard.maps.outputs._combinations import shares_of_softmax as shares_of_softmax
from regard.maps.outputs._joining import Joint as Joint
from regard.maps.outputs._joining import join as join
from regard.maps.tokens._axes import MapAxes as MapAxes
from regard.maps.tokens._layout import Layout as Layout
from regard.maps.tokens._layout import given_layout as given_layout
from regard.maps.tokens._layout import inferred_layout as inferred_layout
from regard.maps.tokens._layout import merged_rows as merged_rows
from regard.maps.tokens._positions import Positions as Positions
from regard.maps.tokens._segments import ImageTokens as ImageTokens
from regard.maps.tokens._segments import Segment as Segment
from regard.maps.tokens._segments import check_segments as check_segments
from regard.maps.tokens._segments import find_segments as find_segments
from regard.maps.tokens._segments import image_tokens_of as image_tokens_of
from regard.maps.tokens._windows import Windows as Windows
from regard.maps.weights._attention_scores import Selection as Selection
from regard.maps.weights._attention_scores import exact as exact
from regard.maps.weights._attention_scores import shared_heads as shared_heads
from regard.observation import observe as observe
from regard.observation import on_grid as on_grid
from regard.observation import unobserved as unobserved
