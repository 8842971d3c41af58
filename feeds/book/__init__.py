"""Order books and level books from frames: `books.Books`; snapshots from which another book continues."""
