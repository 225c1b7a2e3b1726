"""What every floor uses and what knows no model: errors, files, forks, places in sources."""
