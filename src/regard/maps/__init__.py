"""Capture: the attention maps of any model, each compared with what the model computed."""

from regard.maps._attention_scores import Selection as Selection
from regard.maps._attention_scores import exact as exact
from regard.maps._attention_scores import shared_heads as shared_heads
from regard.maps._capture import Capture as Capture
from regard.maps._capture import capture as capture
from regard.maps._capture import check_patterns as check_patterns
from regard.maps._capture import matches as matches
from regard.maps._container import Map as Map
from regard.maps._container import Maps as Maps
from regard.maps._container import check_maps as check_maps
from regard.maps._interception import Interceptor as Interceptor
from regard.maps._interception import RecordListener as RecordListener
from regard.maps._interception import intercept as intercept
from regard.maps._layout import Layout as Layout
from regard.maps._layout import given_layout as given_layout
from regard.maps._layout import inferred_layout as inferred_layout
from regard.maps._layout import merged_rows as merged_rows
from regard.maps._module_names import ModuleNames as ModuleNames
from regard.maps._record import AttentionRecord as AttentionRecord
from regard.maps._record import Check as Check
from regard.maps._record import Computation as Computation
from regard.maps._record import Missed as Missed
from regard.maps._windows import Windows as Windows
from regard.observation import observe as observe
from regard.observation import on_grid as on_grid
from regard.observation import unobserved as unobserved
