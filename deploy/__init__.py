"""Brings an image and a model to an Amazon SageMaker endpoint, and changes, asks, scales and deletes it.

`python3 -m deploy --help` in the repository's root lists the commands. The files from the bottom up:

    names       what is made is called, and the tags that prove whose it is
    aws         calls, their errors as sentences, dry runs, waiting
    requests    what an option changes in a model, a variant, a configuration
    checks      what doesn't go together, said before AWS is asked
    rollout     how an update is shifted: all at once, canary, linear, rolling; alarms
    snapshot    an endpoint as it is, so that an update keeps what isn't named
    create, update, delete, scaling, components, calls, local      the commands
    options, cli                                                   the command line

endpoint.yaml is the same as a CloudFormation template; a test keeps the two in step.
"""
