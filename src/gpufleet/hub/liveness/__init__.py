"""Who was heard of how recently: judged by the hub's own time, and only by time in which the hub could hear."""
