"""Helpers for the checks of the course's notebooks: run a student's answer safely, and explain what is wrong."""

from regard.course import _vision as vision
from regard.course._by_hand import Answer as Answer
from regard.course._by_hand import by_hand as by_hand
from regard.course._checks_folder import notebooks as notebooks
from regard.course._checks_folder import public_checks as public_checks
from regard.course._diagrams import diagram as diagram
from regard.course._expect import Advice as Advice
from regard.course._expect import Draw as Draw
from regard.course._expect import expect as expect
from regard.course._expect import expect_choice as expect_choice
from regard.course._expect import expect_numbers as expect_numbers
from regard.course._expect import expect_parts as expect_parts
from regard.course._expect import expect_tensor as expect_tensor
from regard.course._expect import lines_of as lines_of
from regard.course._expect import pictures_of as pictures_of
from regard.course._notebook import Feedback as Feedback
from regard.course._notebook import Notebook as Notebook
from regard.course._numbers import numbers as numbers
from regard.course._pictures import picture as picture
from regard.course.grading import ReadyMadeError as ReadyMadeError
