"""What is made is called, and the tags that prove whose it is.

Models and configurations of an endpoint are called HEAD-HASH-TIME-SALT: the endpoint's first letters for people, the hash of its whole
name, because two names may begin alike, and a time with digits, because two may be made within a second. The digits begin at a random
number, because two people may make one each, and are counted from there. A name is only where to look. What belongs to an endpoint says
so in its tag.
"""

import hashlib
import itertools
import re
import secrets
from datetime import datetime, timezone

from deploy.aws import Stop

# The most that SageMaker takes.
LONGEST = 63
OWNER = "foretype:endpoint"
STACK = "aws:cloudformation:stack-name"
VARIANT = "AllTraffic"
SALTS = itertools.count(secrets.randbelow(1 << 16))
PATTERN = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")


def checked(name, what="an endpoint's name"):
    if len(name) > LONGEST or not PATTERN.fullmatch(name):
        raise Stop(f"{name!r} can't be {what}: at most {LONGEST} letters, digits and hyphens, with no hyphen at either end")
    return name


def made_for(endpoint):
    """How the names of an endpoint's models and configurations begin."""
    digest = hashlib.sha256(endpoint.encode()).hexdigest()[:8]
    rest = len("-12345678-20260101-000000-1234")
    return f"{endpoint[: LONGEST - rest]}-{digest}-"


def fresh(endpoint):
    return f"{made_for(endpoint)}{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{next(SALTS) % (1 << 16):04x}"


def tags(endpoint, given):
    """The tags of what is made for an endpoint, as AWS lists them."""
    given = dict(given)
    for key in given:
        if key == OWNER or key.lower().startswith("aws:"):
            raise Stop(f"the tag {key} can't be set: it says whose a thing is")
    if len(given) > 49:
        raise Stop(f"{len(given)} tags are too many: SageMaker takes 50, one of which is {OWNER}")
    return [{"Key": key, "Value": value} for key, value in ({OWNER: endpoint} | given).items()]


def carried(found):
    """The tags of an endpoint that what is made for it later gets, too."""
    return {key: value for key, value in found.items() if key != OWNER and not key.lower().startswith("aws:")}
