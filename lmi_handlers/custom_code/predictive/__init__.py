"""Answers requests with a model that the author's functions load: SageMaker's scripts, and LMI's for scikit-learn and XGBoost."""
