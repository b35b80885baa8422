"""A page that shows a row stream chunk by chunk through a monoid's recurrence."""

from tilefold.watch.page import render_page as render_page
from tilefold.watch.rows import read_rows as read_rows
