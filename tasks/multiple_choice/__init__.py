"""Multiple choice: which of some texts answers a question."""
