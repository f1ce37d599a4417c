"""What calls to models cost: tokens, seconds, and money where a price is known."""

from surerag.prices.costs import Costs
from surerag.prices.spent import Costed
from surerag.prices.table import Price, Prices, load_prices

__all__ = ["Costed", "Costs", "Price", "Prices", "load_prices"]
