"""Account of a daemon, whose files a command of root creates."""

import os
import pwd

import msgspec

from gpufleet.cli.options import CommandError


class Account(msgspec.Struct, frozen=True):
    """Account that a daemon runs as.

    Attributes:
        name: login name.
        uid, gid: user and primary group.
    """

    name: str
    uid: int
    gid: int

    @property
    def is_own(self) -> bool:
        """Return whether this process runs as the account."""
        return self.uid == os.geteuid()


def find_account(name: str | None, default: str) -> Account:
    """Return the account of a daemon.

    Args:
        name: login name; None means `default` if this is root and the account exists, else the account of this process.
        default: account of the systemd unit.

    Raises:
        CommandError: if there is no such account, or this process may not give files to it.
    """
    if name is None and os.geteuid() == 0:
        try:
            return _account(pwd.getpwnam(default))
        except KeyError:
            pass
    if name is None:
        try:
            return _account(pwd.getpwuid(os.geteuid()))
        except KeyError:
            return Account(str(os.geteuid()), os.geteuid(), os.getegid())
    try:
        account = _account(pwd.getpwnam(name))
    except KeyError as error:
        raise CommandError(f"there is no account {name!r}: create it, or choose another with --user") from error
    if os.geteuid() not in (0, account.uid):
        raise CommandError(f"only root can create files for {name!r}: run this with sudo, or without --user")
    return account


def _account(entry: pwd.struct_passwd) -> Account:
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
