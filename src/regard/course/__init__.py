"""What the checks of the course's notebooks share: answers run under watch, and messages that say what is wrong."""

from regard.course._by_hand import ReadyMadeError as ReadyMadeError
from regard.course._by_hand import by_hand as by_hand
from regard.course._checks_folder import checks as checks
from regard.course._checks_folder import notebooks as notebooks
from regard.course._expect import Draw as Draw
from regard.course._expect import expect as expect
from regard.course._expect import expect_choice as expect_choice
