"""Secure grading: every check runs a student's answer in a separate process and compares the results in another.

The grader reads checks and seeds; the student's process gets the source of one answer and inputs, and returns data.
"""

from regard.course.grading._batch import grade_files as grade_files
from regard.course.grading._codec import plain_figure as plain_figure
from regard.course.grading._grade import CheckOutcome as CheckOutcome
from regard.course.grading._grade import Marks as Marks
from regard.course.grading._grade import Result as Result
from regard.course.grading._grade import grade as grade
from regard.course.grading._package import NotebookCheck as NotebookCheck
from regard.course.grading._package import Package as Package
from regard.course.grading._package import Question as Question
from regard.course.grading._package import checks_of as checks_of
from regard.course.grading._package import one_spelling as one_spelling
from regard.course.grading._package import seed_for as seed_for
from regard.course.grading._presentation import as_gradescope as as_gradescope
from regard.course.grading._presentation import as_manual_sheet as as_manual_sheet
from regard.course.grading._presentation import as_table as as_table
from regard.course.grading._presentation import as_text as as_text
from regard.course.grading._refusal import ATTENTION as ATTENTION
from regard.course.grading._refusal import READY_MADE as READY_MADE
from regard.course.grading._refusal import ReadyMadeError as ReadyMadeError
from regard.course.grading._refusal import called_torch as called_torch
from regard.course.grading._sandbox import AnswerError as AnswerError
from regard.course.grading._sandbox import Job as Job
from regard.course.grading._sandbox import RemoteAnswer as RemoteAnswer
from regard.course.grading._sandbox import Sandbox as Sandbox
from regard.course.grading._sandbox import Stopped as Stopped
from regard.course.grading._submission import Submission as Submission
