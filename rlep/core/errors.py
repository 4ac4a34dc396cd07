"""The errors a caller of rlep can meet. Each leaf is also a standard kind, and each pickles (one message argument).

``ValueError`` kin are the user's input: the message names the setting and the fix.
``RuntimeError`` and ``TimeoutError`` kin are the state of a run: the message names who, what, and the numbers.
"""

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended."""
UNFOLLOWED = 3
"""Exit status of ``rlep submit`` whose cluster does not answer any more, while the job may go on."""


class RlepError(Exception):
    """Anything rlep raises on purpose."""


class ConfigError(RlepError, ValueError):
    """A configuration that cannot be run; the message names the key."""


class WrongVersionError(RlepError, RuntimeError):
    """A library that is not installed, or in a version that rlep cannot use; the message names what to install."""


class DataError(RlepError, ValueError):
    """A dataset that is missing, empty, or not of a known shape; the message names the columns found."""


class ModelError(RlepError, ValueError):
    """A model directory that cannot be used: missing, without tokenizer, too short a context, other weights."""


class HubAway(ModelError, DataError):
    """The hub cannot be asked now: what a name stands for is not known. Try again later."""


class MixingError(RlepError, ValueError):
    """A group that is not exactly G fresh and at most M replayed trajectories of one prompt."""


class StaleRolloutError(MixingError):
    """A fresh rollout sampled under another policy version than the step trains."""


class RecordRefused(RlepError, ValueError):
    """A trajectory that the pool does not take; the message is the reason."""


class PoolError(RlepError, RuntimeError):
    """The experience pool cannot do what was asked: unreachable, full, sealed, or another tokenizer."""


class VerifierError(RlepError, RuntimeError):
    """The verifier itself failed (not the response it was given)."""


class JudgeAway(VerifierError):
    """The server behind a reward function cannot be reached: no response gets a verdict, right or wrong."""


class EnvironmentFault(RlepError, RuntimeError):
    """The processes of environments cannot be kept alive, whatever the policy does."""


class UngradedRows(RlepError, RuntimeError):
    """Rows of a file that could not be read, so that they have no verdict; the others have one."""


class ActorLost(RlepError, RuntimeError):
    """An actor died or stopped answering, and is out of restarts."""


class WeightsLost(ActorLost):
    """No generator serves the policy any more, and those that start again get it from the next publication only."""


class LearnerLost(ActorLost):
    """A learner rank died or stopped answering heartbeats; all ranks have to be restarted together."""


class HeadLost(RlepError, RuntimeError):
    """Ray's head process is gone: nothing can be placed any more; the message says where it was."""


class OutOfMemory(RlepError, RuntimeError):
    """A learner rank has less memory than its work needs, which no restart changes; the message has the numbers."""


class PlacementError(RlepError, RuntimeError):
    """The cluster lacks what a requested actor needs; the message names the missing resource or label."""


class DeadlineExceeded(RlepError, TimeoutError):
    """A wait ran out; the message says what was waited for and how long."""


class WeightSyncError(RlepError, RuntimeError):
    """A weight update was refused, or its log-probs do not match the learner's."""


class CheckpointError(RlepError, RuntimeError):
    """A checkpoint that is torn, corrupt, or belongs to another run."""


class StaleCheckpoint(CheckpointError):
    """A checkpoint that a shared file system does not give out now (ESTALE): it may be whole."""


class UpdateError(RlepError, RuntimeError):
    """An optimizer update that cannot be applied."""


def first_line(error: BaseException | str) -> str:
    """An error without the traceback or the C++ stack that follows it; empty where it says nothing."""
    return str(error).strip().partition("\n")[0]
