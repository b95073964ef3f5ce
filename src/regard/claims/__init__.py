"""Executable theory: statements about attention, each decided by a check, with corrections.

>>> from regard.claims import select
>>> claim = select("hw4-beta-zero")[0]
>>> claim.verdict, claim.examine(claim.says).accepted, claim.examine(claim.mutant.candidate).accepted
('holds', True, False)
"""

from regard.claims import convolution as convolution
from regard.claims import encoders as encoders
from regard.claims import heads as heads
from regard.claims import positions as positions
from regard.claims import scaling as scaling
from regard.claims import sequences as sequences
from regard.claims import temperature as temperature
from regard.claims._answers import answers as answers
from regard.claims._claim import SOURCES as SOURCES
from regard.claims._claim import TOPICS as TOPICS
from regard.claims._claim import Claim as Claim
from regard.claims._claim import Evidence as Evidence
from regard.claims._claim import all_claims as all_claims
from regard.claims._misconceptions import misconceptions as misconceptions
from regard.claims._pictures import picture as picture
from regard.claims._proofs import Theorem as Theorem
from regard.claims._proofs import theorems as theorems
from regard.claims._proofs import theorems_about as theorems_about
from regard.claims._row import Row as Row
from regard.claims._run import Verification as Verification
from regard.claims._run import examine as examine
from regard.claims._run import select as select
from regard.claims._run import verify as verify
from regard.claims._sheets import SHEETS as SHEETS
from regard.claims._sheets import SheetQuestion as SheetQuestion
from regard.claims._table import details as details
