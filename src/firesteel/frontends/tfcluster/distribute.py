"""``distribute``: a Keras model whose ``fit`` averages its gradients with the other nodes'."""

from __future__ import annotations

from typing import Any

from firesteel.engine.together import fit_together, is_first

__all__ = ["distribute"]


class _Distribute:
    """``distribute(model)``, and ``distribute.on_chief(callback)``."""

    def __call__(self, model: Any) -> Any:
        """The same compiled Keras 3 model, whose ``fit`` works with all chiefs, masters and workers of ``TF_CONFIG``.

        Gradients are averaged over all of them, weighted by rows, from the first node's weights; metrics in ``History``
        are those of all together. Nodes may have different numbers of rows: one that has none for a step takes part
        with none, and an epoch ends when all have ended. Where there is no ``TF_CONFIG``, or one node, nothing changes.
        Every node has to call ``fit``, with the same number of epochs.
        """
        fit = fit_together(model)
        if fit is not None:
            model.fit = fit
        return model

    @staticmethod
    def on_chief(callback: Any) -> Any:
        """The callback on the first node, and one that does nothing on the others: for callbacks that save."""
        if is_first():
            return callback
        import keras

        return keras.callbacks.Callback()

    def __repr__(self) -> str:
        return "distribute(model)"


distribute = _Distribute()
